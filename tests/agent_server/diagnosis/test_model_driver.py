"""A model drives a case: whatever it does, the evidence is the judge, and the rules finish."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import model_server
import pytest
from driven_cases import Outcome, Watching, concluding, data, driven, kinds, say
from model_http import Answer, Policy, Request, Turn, error
from model_policies import POLICIES, DiesAfter, engineer
from rank_jobs import Fault, Plan, simulate
from recordings import Scene, checkpoints
from solving import new_case, solve

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.budget import Limits
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import FIRST_TOOLS, HARDWARE_TOOL
from whystall.agent_server.diagnosis.model_driver import drive
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.step_progress import StepProgress
from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.knowledge_base.models import Verdict
from whystall.prompts.render import LANGS, words
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

RECORDED = Path(__file__).parents[2] / "recorded"
FIRST_HERE = [*FIRST_TOOLS, HARDWARE_TOOL]
SCENES = sorted(path.parent.name for path in RECORDED.glob("*/manifest.json"))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def recorded(name: str) -> RecordedObserver:
    return RecordedObserver(Recording.open(RECORDED / name, COLLECTORS))


def stall() -> Recording:
    """A training loop that writes its checkpoints itself."""
    return checkpoints(Scene().thread(user=65, system=2, blocked=30).disk("loop7", busy=99, await_ms=200)).build()


def answer(found: Outcome) -> tuple[Verdict, str | None, list[str]]:
    return found.diagnosis.verdict, found.diagnosis.cause, found.kinds


def on_stall(answers: Policy | Iterable[Answer], **options: Any) -> Outcome:
    return driven(RecordedObserver(stall()), answers, **options)


RIGHT = (Verdict.CONFIRMED, "sync_checkpoint_write")
GONE = ("unreachable", "cut_off")


# --- the model and the rules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_a_server_killed_midway_leaves_the_answer_of_the_rules(scene: str) -> None:
    by_rules = solve(recorded(scene), "slow")
    found = driven(recorded(scene), DiesAfter(engineer, 1))
    assert answer(found) == (by_rules.verdict, by_rules.cause, kinds(by_rules))
    assert found.diagnosis.missing == by_rules.missing
    assert found.reasoning.stopped in GONE
    assert found.reasoning.claims == []


@pytest.mark.parametrize("scene", SCENES)
def test_an_honest_model_comes_to_the_answer_of_the_rules(scene: str) -> None:
    by_rules = solve(recorded(scene), "slow")
    found = driven(recorded(scene), engineer)
    assert answer(found) == (by_rules.verdict, by_rules.cause, kinds(by_rules))
    assert found.reasoning.stopped is None


@pytest.mark.parametrize("cause", ["unknown", "cgroup_cpu_throttling"])
def test_a_model_that_looks_at_nothing_gets_no_less_than_the_rules(cause: str) -> None:
    found = on_stall([concluding(cause), concluding("unknown")])
    by_rules = solve(RecordedObserver(stall()), "slow")
    assert answer(found) == (*RIGHT, kinds(by_rules))
    assert [step.why for step in found.diagnosis.steps] == ["first_look", "separates_causes"]


def test_calls_of_one_message_are_one_window() -> None:
    found = on_stall([say(("fileslower", {}), ("offcputime", {}), ("biolatency", {})), concluding()])
    assert found.diagnosis.steps[1].tools == ["fileslower", "offcputime", "biolatency"]
    assert found.diagnosis.steps[1].why == "model_asked"
    state = [part["state"] for text in found.answers for part in data(text) if "state" in part]
    assert len(state) == 1, "told once, after the last result"
    assert state[0]["verdict_so_far"]["cause"] == "sync_checkpoint_write"


def test_tokens_seconds_and_the_models_name_are_kept() -> None:
    found = on_stall([say(("fileslower", {}), usage=(1000, 10)), say(("conclude", {"cause": "unknown", "claims": []}))])
    usage = found.reasoning.usage
    assert (usage.requests, usage.tokens_in, usage.tokens_out, usage.money) == (2, 1100, 30, None)
    assert usage.seconds > 0
    assert found.reasoning.model == model_server.MODEL


def closest(request: Request) -> Turn:
    """Every tool at once, looking as closely as it can; then a conclusion."""
    if any(m["role"] == "tool" for m in request.messages):
        return concluding()
    calls = []
    for name, function in request.functions.items():
        fields = function["parameters"]["properties"]
        closely = {field: schema["minimum"] for field, schema in fields.items() if field.startswith("min_")}
        longest = {field: schema["maximum"] for field, schema in fields.items() if field == "top"}
        if name != "conclude":
            calls.append((name, closely | longest))
    return say(*calls)


@pytest.mark.parametrize("scene", SCENES)
def test_how_closely_a_model_looks_changes_no_verdict(scene: str) -> None:
    by_rules = solve(recorded(scene), "slow")
    found = driven(recorded(scene), closest)
    assert answer(found)[:2] == (by_rules.verdict, by_rules.cause)
    assert len(found.diagnosis.steps[1].tools) >= 4


# --- what stops a model -----------------------------------------------------------------------------------------------

LOOKS = ["fileslower", "offcputime", "biolatency", "syscall_time"]


def looking(request: Request) -> Turn:
    """Always another tool, and never a conclusion."""
    done = sum(len(m.get("tool_calls") or []) for m in request.messages)
    return say((LOOKS[done % len(LOOKS)], {"top": 11 + done}))


@pytest.mark.parametrize(
    ("limits", "stopped", "requests"),
    [
        (Limits(steps=2), "budget_steps", 2),
        (Limits(tokens=200), "budget_tokens", 2),
        (Limits(money=0.0002, price_in=1, price_out=0), "budget_money", 2),
    ],
)
def test_a_budget_ends_the_models_part(limits: Limits, stopped: str, requests: int) -> None:
    found = on_stall(looking, limits=limits)
    assert (found.reasoning.stopped, found.reasoning.usage.requests) == (stopped, requests)
    assert answer(found)[:2] == RIGHT
    assert found.diagnosis.missing == []


def test_windows_count_as_time() -> None:
    found = driven(Watching(stall()), looking, limits=Limits(seconds=20))
    assert found.reasoning.stopped == "budget_seconds"
    assert [step.why for step in found.diagnosis.steps].count("model_asked") == 2
    assert answer(found)[:2] == RIGHT


def test_a_model_that_thinks_longer_than_the_budget_is_left() -> None:
    found = on_stall([Turn(delay=60.0)], limits=Limits(seconds=0.2))
    assert (found.reasoning.stopped, answer(found)[:2]) == ("budget_seconds", RIGHT)


@pytest.mark.parametrize(
    ("answers", "stopped"),
    [
        ([Turn(refusal="I cannot help with that.")], "refusal"),
        ([Turn(finish="content_filter")], "refusal"),
        ([Turn(), Turn()], "empty"),
        ([Turn("It is the network."), Turn("As I said.")], "prose"),
        ([Turn("It is", finish="length"), Turn("It is", finish="length")], "length"),
        ([say(("fileslower", {}))] * 4, "repetition"),
        ([say(("shell", {"command": "id"}))] * 3, "wrong_calls"),
        ([say(("conclude", '{"cause": '))] * 3, "wrong_calls"),
        ([say(("conclude", {"cause": "unknown", "claims": []}), ("conclude", {}))] * 3, "wrong_calls"),
        ([error(401, "no")], "unauthorised"),
        ([error(400, "no")], "rejected"),
        ([error(500, "no")], "server_error"),
        ([error(429, "slow down")], "rate_limited"),
    ],
    ids=lambda value: value if isinstance(value, str) else "after",
)
def test_whatever_stops_a_model_the_rules_finish(answers: list[Answer], stopped: str) -> None:
    found = on_stall(answers)
    assert (found.reasoning.stopped, answer(found)[:2]) == (stopped, RIGHT)
    assert found.diagnosis.missing == [], "a model that is stopped lowers nothing"
    for lang in LANGS:
        assert words(lang)["stopped"][stopped]


def test_what_a_stopped_model_had_concluded_is_kept_as_far_as_it_is_supported() -> None:
    def policy(request: Request) -> Turn:
        told = [part for m in request.messages if m["role"] == "tool" for part in data(m["content"])]
        if not told:
            return say(*((tool, {}) for tool in LOOKS))
        if "conclude" in str(request.messages[-2].get("tool_calls")):
            return Turn(refusal="Enough.")
        sync = next(f for part in told for f in part.get("findings", []) if f["kind"] == "file.slow_sync")
        claims = [("is_symptom_of", sync["id"], "sync_checkpoint_write"), ("causes", "F99999", sync["id"])]
        return concluding("sync_checkpoint_write", *claims)

    found = on_stall(policy)
    assert found.reasoning.stopped == "refusal"
    assert [claim.relation for claim in found.reasoning.claims] == ["is_symptom_of"]
    assert found.reasoning.struck == ["no_finding"]
    assert (answer(found)[:2], found.diagnosis.missing) == (RIGHT, [])


def test_a_model_may_err_between_looks_and_talk_once() -> None:
    answers = [
        Turn("Let me think."),
        say(("fileslower", {"pid": 1})),
        Turn("Not that one."),
        say(("fileslower", {})),
        Turn("Interesting."),
        concluding("sync_checkpoint_write"),
    ]
    found = on_stall(answers)
    assert found.reasoning.stopped is None
    assert answer(found)[:2] == RIGHT


def test_a_code_of_every_failure_has_words() -> None:
    text = LlmError.__doc__ or ""
    codes = {part.strip("`") for part in text.replace(",", " ").split() if part.startswith("``")}
    assert len(codes) >= 10
    for lang in LANGS:
        assert codes <= words(lang)["stopped"].keys()


def test_what_is_neither_an_answer_nor_an_error_of_a_model_passes_through() -> None:
    class Broken:
        name = "broken"

        async def complete(self, *_: object) -> None:
            raise ArithmeticError

    case = new_case(RecordedObserver(stall()), "slow")
    with pytest.raises(ArithmeticError):
        anyio.run(lambda: drive(case, Broken()))  # type: ignore[arg-type]


# --- what a model may not choose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pid": 1}, "unknown argument 'pid'"),
        ({"comm": "sshd"}, "unknown argument 'comm'"),
        ({"cgroup": "/"}, "unknown argument 'cgroup'"),
        ({"children": True}, "unknown argument 'children'"),
        ({"engine": "procfs"}, "unknown argument 'engine'"),
        ({"recording": "/etc"}, "unknown argument 'recording'"),
        ({"profile": "/etc/shadow"}, "unknown argument 'profile'"),
        ({"min_ms": 600000}, "min_ms: Input should be less than or equal to 10"),
        ({"top": 1}, "top: Input should be greater than or equal to 10"),
        ({"duration": 0.1}, "duration: Input should be greater than or equal to 6"),
        ({"duration": 600}, "duration: Input should be less than or equal to 150"),
        ({"top": "many"}, "top: Input should be a valid integer"),
        ("[1]", "the arguments are no JSON object"),
        ('{"top": 20', "the arguments are no JSON"),
        ('{"top": ' + "2" * 30_000 + "}", "arguments of 30009 characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_target_engine_and_files_are_not_for_the_model_to_choose(arguments: Any, said: str) -> None:
    watching = Watching(stall())
    found = driven(watching, [say(("fileslower", arguments)), concluding(), concluding()])
    assert data(found.answers[0])[0]["message"].startswith(said)
    assert not any("fileslower" in asked.options for asked in watching.asked)
    assert answer(found)[:2] == RIGHT


def test_an_unknown_function_is_answered_with_those_there_are() -> None:
    found = on_stall([say(("run_shell", {"command": "id"})), concluding()])
    told = data(found.answers[0])[0]
    assert told["error"] == "not_found"
    assert "fileslower" in told["remedy"]
    assert "conclude" in told["remedy"]


def test_what_a_model_gives_reaches_the_tool_and_nothing_else_does() -> None:
    watching = Watching(stall())
    call = ("fileslower", {"min_ms": 1, "duration": 7})
    driven(watching, [say(call, ("offcputime", {"waker": True})), concluding(), concluding()])
    window = watching.asked[1]
    assert [tool for tool in window.tools if tool not in FIRST_HERE] == ["host_snapshot", "fileslower", "offcputime"]
    assert (window.duration, window.options) == (
        7,
        {
            "gpu_health": {"first_look": True},
            "fileslower": {"min_ms": 1.0},
            "offcputime": {"waker": True},
        },
    )


def test_one_window_gives_a_tool_one_set_of_arguments_and_takes_so_many_calls() -> None:
    watching = Watching(stall(), live=False)
    calls = [("fileslower", {"top": top}) for top in range(20, 30)]
    found = driven(watching, [say(*calls), concluding()])
    assert watching.asked[1].options == {"fileslower": {"top": 20}}
    assert len(found.answers) == 8
    assert "at most 8 calls" in found.answers[-1]


# --- looking again ----------------------------------------------------------------------------------------------------


def test_a_recording_shows_the_same_again_and_nobody_looks() -> None:
    watching = Watching(stall(), live=False)
    answers = [say(("host_snapshot", {})), say(("fileslower", {})), say(("fileslower", {})), concluding()]
    found = driven(watching, answers)
    assert [asked.tools for asked in watching.asked[:2]] == [["host_snapshot", *FIRST_HERE], ["fileslower"]]
    assert found.answers[0].startswith("Nothing new")
    assert found.answers[2].startswith("Nothing new")
    assert found.reasoning.stopped is None


def test_a_running_job_may_be_sampled_a_few_times() -> None:
    watching = Watching(stall())
    found = driven(watching, [say(("fileslower", {}))] * 6)
    assert found.reasoning.stopped == "repetition"
    assert sum(asked.options.get("fileslower") == {} for asked in watching.asked) >= 3
    assert [step.why for step in found.diagnosis.steps].count("model_asked") == 3
    assert answer(found)[:2] == RIGHT


def test_an_id_of_an_earlier_window_means_what_was_found_anew() -> None:
    def policy(request: Request) -> Turn:
        told = [part for m in request.messages if m["role"] == "tool" for part in data(m["content"])]
        if not told:
            return say(("fileslower", {}), ("offcputime", {}), ("biolatency", {}), ("syscall_time", {}))
        first = next(f for part in told for f in part.get("findings", []) if f["kind"] == "file.slow_sync")
        if len(told) < 6:
            return say(("fileslower", {"min_ms": 5}))
        claim = ("is_symptom_of", first["id"], "sync_checkpoint_write")
        return concluding("sync_checkpoint_write", claim, narrative=f"it waits {{{first['id']}.window_pct}}")

    found = driven(Watching(stall()), policy)
    assert found.reasoning.struck == []
    (claim,) = found.reasoning.claims
    (cited,) = [f for f in found.diagnosis.findings if f.id == claim.subject]
    assert cited.kind == "file.slow_sync"
    assert found.reasoning.unverified.narrative == f"it waits {{{cited.id}.window_pct}}"
    assert answer(found)[:2] == RIGHT


def test_a_model_may_ask_which_claims_hold_before_it_concludes() -> None:
    def policy(request: Request) -> Turn:
        told = [part for m in request.messages if m["role"] == "tool" for part in data(m["content"])]
        if not told:
            return say(("fileslower", {}), ("offcputime", {}))
        if any("claims" in part for part in told):
            return concluding()
        ids = {f["kind"]: f["id"] for part in told for f in part.get("findings", []) if f["polarity"] == "abnormal"}
        sync, blocked = ids["file.slow_sync"], ids["offcpu.blocked"]
        pairs = ((sync, blocked), (blocked, sync))
        claims = [{"relation": "causes", "subject": one, "object": other} for one, other in pairs]
        return say(("check_claims", {"claims": claims}))

    found = on_stall(policy)
    (told,) = [part["claims"] for part in data(found.answers[2]) if "claims" in part]
    assert [claim["supported"] for claim in told] == [True, False]
    assert told[1]["why"]
    assert told[1]["see"]["id"] == told[0]["claim"]["subject"]
    assert answer(found)[:2] == RIGHT
    assert found.diagnosis.missing == [], "to ask lowers nothing"


def test_before_a_conclusion_is_judged_live_the_model_sees_what_decides() -> None:
    found = driven(Watching(stall()), [concluding("sync_checkpoint_write"), concluding("sync_checkpoint_write")])
    (told,) = [part for part in data(found.answers[0]) if "results" in part]
    assert {result["tool"] for result in told["results"]} >= {"fileslower", "offcputime"}
    assert (found.reasoning.stopped, answer(found)[:2]) == (None, RIGHT)


def test_a_hasty_model_that_is_wrong_is_told_with_what_decides() -> None:
    found = on_stall([concluding("slow_device"), concluding("sync_checkpoint_write")])
    (told,) = [part for part in data(found.answers[0]) if "results" in part]
    shown = {f["id"] for result in told["results"] for f in result["findings"]}
    best = told["state"]["causes"][0]
    assert best["cause"] == "sync_checkpoint_write"
    assert shown & set(best["for"])
    assert (found.reasoning.stopped, answer(found)[:2]) == (None, RIGHT)


# --- looks that fail --------------------------------------------------------------------------------------------------


def failing(after: int, code: ErrorCode = ErrorCode.NO_SUCH_PROCESS) -> Watching:
    async def window(number: int) -> None:
        if number > after:
            raise ToolError(code, "pid 4000 has exited", "observe another")

    return Watching(stall(), window=window)


@pytest.mark.parametrize(
    ("code", "stopped", "blind"),
    [(ErrorCode.NO_PRIVILEGE, "look_failed", set()), (ErrorCode.NO_SUCH_PROCESS, None, {"target_exited"})],
)
def test_a_failed_observation_is_reported_and_earlier_results_are_kept(
    code: ErrorCode, stopped: str | None, blind: set[str]
) -> None:
    found = driven(
        failing(2, code), [say(("fileslower", {}), ("offcputime", {})), say(("biolatency", {})), concluding()]
    )
    assert data(found.answers[-1])[0]["error"] == code.value
    assert found.reasoning.stopped == stopped
    assert found.diagnosis.cause == "sync_checkpoint_write"
    assert blind <= set(found.diagnosis.missing)


def test_where_nothing_can_be_looked_at_there_is_no_diagnosis() -> None:
    with pytest.raises(ToolError) as failed:
        driven(failing(after=0), engineer)
    assert failed.value.code is ErrorCode.NO_SUCH_PROCESS
    with pytest.raises(ToolError):
        driven(failing(1, ErrorCode.NO_PRIVILEGE), engineer)


def test_a_target_that_ended_after_the_first_window_is_judged_by_it() -> None:
    found = driven(failing(after=1), engineer)
    assert "target_exited" in found.diagnosis.missing


# --- being cancelled --------------------------------------------------------------------------------------------------


def cancelled(watching: Watching, answers: Policy | Iterable[Answer], when: str) -> Case:
    """A case that is cancelled when its progress first says `when`, or its observer sets off the scope."""
    case = new_case(watching, "slow")
    with model_server.serve(answers) as server:
        settings = LlmSettings(base_url=server.base_url, model=model_server.MODEL)

        async def run() -> None:
            with anyio.CancelScope() as scope:

                def progress(done: float, total: float, message: str) -> None:
                    if when in message:
                        scope.cancel()

                case.progress = StepProgress(progress)
                async with ChatClient(settings) as model:
                    await drive(case, model)
            assert scope.cancelled_caught

        anyio.run(run)
    return case


@pytest.mark.parametrize("when", ["waiting for answer 1", "waiting for answer 2", "step 1", "step 2", "step 3"])
def test_cancelled_at_any_step_nothing_stays_open(when: str) -> None:
    async def window(number: int) -> None:
        await anyio.sleep(0.05)

    watching = Watching(stall(), window=window)
    case = cancelled(watching, [say(("fileslower", {})), say(("offcputime", {})), Turn(delay=60.0)], when)
    assert watching.open == 0
    assert len(case.steps) == {"waiting for answer 1": 1, "waiting for answer 2": 2}.get(when, int(when[-1]) - 1)
    assert case.reasoning is None


def test_cancelled_while_a_slow_model_is_waited_for() -> None:
    watching = Watching(stall())
    cancelled(watching, [Turn(delay=60.0)], "1 s")
    assert watching.open == 0


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        (
            "en",
            [
                f"step 1: {', '.join(['host_snapshot', *FIRST_HERE])} (first observation)",
                "waiting for answer 1 of example",
                "(the model asked for it)",
            ],
        ),
        (
            "zh",
            [
                f"第 1 步：{', '.join(['host_snapshot', *FIRST_HERE])}（初步观测）",
                "等待第 1 次回答，模型 example",
                "（模型要求观测）",
            ],
        ),
    ],
)
def test_progress_names_each_step_its_tools_and_why(lang: Any, said: list[str]) -> None:
    told: list[str] = []

    def prepare(case: Case) -> None:
        case.progress = StepProgress(lambda done, total, message: told.append(message), lang)

    on_stall([say(("fileslower", {})), concluding()], prepare=prepare, lang=lang)
    assert told[:2] == said[:2]
    assert said[2] in told[2]
    assert "fileslower" in told[2]


# --- ranks ------------------------------------------------------------------------------------------------------------


def test_ranks_without_a_host_here_are_judged_by_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(Plan(faults=(Fault("compute", (1,), ms=25),))).recording.save(tmp_path / "rec")
    with model_server.serve(POLICIES["engineer"].make()) as server, App().closing() as app:
        monkeypatch.setenv("WHYSTALL_LLM_BASE_URL", server.base_url)
        monkeypatch.setenv("WHYSTALL_LLM_MODEL", model_server.MODEL)
        found = anyio.run(lambda: app.diagnose(DiagnoseParams(llm=True), source=tmp_path / "rec"))
        assert server.chats == []
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "slow_rank_compute")
    assert found.reasoning is not None
    assert (found.reasoning.model, found.reasoning.stopped) == (model_server.MODEL, "no_host")


def test_without_settings_nothing_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BASE_URL", "MODEL"):
        monkeypatch.delenv(f"WHYSTALL_LLM_{name}", raising=False)
    with App().closing() as app, pytest.raises(ToolError) as refused:
        anyio.run(lambda: app.diagnose(DiagnoseParams(llm=True), source=RECORDED / "checkpoint"))
    assert refused.value.code is ErrorCode.NO_MODEL
