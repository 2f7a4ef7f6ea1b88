"""Texts of metrics endpoints, shortened: names, labels and buckets as the servers write them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# https://github.com/sgl-project/sglang/blob/40ef116f/docs/references/production_metrics.md prints these numbers; some
# buckets are left out
SGLANG = """\
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.557572e+06
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:time_to_first_token_seconds_sum{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2.3518979474117756e+06
sglang:time_to_first_token_seconds_bucket{le="2.5",model_name="meta-llama/Llama-3.1-8B-Instruct"} 140.0
sglang:time_to_first_token_seconds_bucket{le="10.0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 1330.0
sglang:time_to_first_token_seconds_bucket{le="30.0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 2513.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="meta-llama/Llama-3.1-8B-Instruct"} 11008.0
sglang:time_to_first_token_seconds_count{model_name="meta-llama/Llama-3.1-8B-Instruct"} 11008.0
sglang:time_per_output_token_seconds_sum{model_name="meta-llama/Llama-3.1-8B-Instruct"} 866964.5791549598
sglang:time_per_output_token_seconds_bucket{le="0.075",model_name="meta-llama/Llama-3.1-8B-Instruct"} 433413.0
sglang:time_per_output_token_seconds_bucket{le="0.1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 4.950195e+06
sglang:time_per_output_token_seconds_bucket{le="0.15",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.039435e+06
sglang:time_per_output_token_seconds_bucket{le="+Inf",model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.400757e+06
sglang:time_per_output_token_seconds_count{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.400757e+06
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""
# https://github.com/triton-inference-server/server/blob/067c1e96/docs/user_guide/metrics.md: names and labels
TRITON = """\
nv_inference_request_success{{model="my_model",version="1"}} {finished}
nv_inference_request_duration_us{{model="my_model",version="1"}} {e2e_us}
nv_inference_queue_duration_us{{model="my_model",version="1"}} {queue_us}
nv_inference_pending_request_count{{model="my_model",version="1"}} {waiting}
"""
# https://github.com/huggingface/text-generation-inference/blob/53fdbe61/docs/source/reference/metrics.md: names
TGI = """\
tgi_queue_size {waiting}
tgi_batch_current_size {running}
tgi_request_success {finished}
tgi_request_queue_duration_bucket{{le="1"}} 0
tgi_request_queue_duration_bucket{{le="+Inf"}} {finished}
tgi_request_queue_duration_sum {queue_s}
tgi_request_queue_duration_count {finished}
tgi_request_duration_sum {e2e_s}
tgi_request_duration_count {finished}
tgi_batch_inference_duration_sum{{method="prefill"}} 1.5
tgi_batch_inference_duration_count{{method="prefill"}} {finished}
tgi_batch_inference_duration_sum{{method="decode"}} 900
tgi_batch_inference_duration_count{{method="decode"}} 9000
"""
# https://github.com/NVIDIA/TensorRT-LLM/blob/89fd9b74/tensorrt_llm/metrics/collector.py: names, with its later prefix
TRTLLM = """\
trtllm_num_requests_running{{model_name="m",engine_type="trtllm"}} {running}
trtllm_num_requests_waiting{{model_name="m",engine_type="trtllm"}} {waiting}
trtllm_kv_cache_utilization{{model_name="m",engine_type="trtllm"}} 0.62
trtllm_request_success_total{{model_name="m",engine_type="trtllm",finished_reason="stop"}} {finished}
trtllm_request_queue_time_seconds_bucket{{le="0.3",model_name="m",engine_type="trtllm"}} 0
trtllm_request_queue_time_seconds_bucket{{le="+Inf",model_name="m",engine_type="trtllm"}} {finished}
trtllm_request_queue_time_seconds_sum{{model_name="m",engine_type="trtllm"}} {queue_s}
trtllm_request_queue_time_seconds_count{{model_name="m",engine_type="trtllm"}} {finished}
trtllm_e2e_request_latency_seconds_sum{{model_name="m",engine_type="trtllm"}} {e2e_s}
trtllm_e2e_request_latency_seconds_count{{model_name="m",engine_type="trtllm"}} {finished}
"""
# https://github.com/InternLM/lmdeploy/blob/7c8d16f5/lmdeploy/metrics/loggers.py: names and labels
LMDEPLOY = """\
lmdeploy:num_requests_running{{model_name="m",engine="0"}} {running}
lmdeploy:num_requests_waiting{{model_name="m",engine="0"}} {waiting}
lmdeploy:gpu_cache_usage_perc{{model_name="m",engine="0"}} 0.2
lmdeploy:generation_tokens_total{{model_name="m",engine="0"}} {tokens}
lmdeploy:iter_token_latency_sum{{model_name="m",engine="0"}} {tokens}
lmdeploy:iter_token_latency_count{{model_name="m",engine="0"}} {tokens}
"""
# https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md: names
LLAMACPP = """\
llamacpp:prompt_tokens_total {tokens}
llamacpp:tokens_predicted_total {tokens}
llamacpp:n_decode_total {steps}
llamacpp:requests_processing {running}
llamacpp:requests_deferred {waiting}
"""


def vllm(
    waiting: float = 0,
    running: float = 0,
    tokens: float = 0,
    finished: float = 0,
    preemptions: float = 0,
    kv: float = 0.1,
    ttft: Sequence[float] = (0, 0, 0),
    queue_s: float = 0,
    itl: Sequence[float] = (0, 0),
    v0: bool = False,
) -> str:
    """Metrics as loggers.py of vLLM at 005a810b names them. `ttft`: requests up to 0.25 s, up to 2.5 s, and all; `itl`:
    tokens up to 0.05 s, and all; `v0`: with the older names."""
    labels = 'model_name="m"' if v0 else 'engine="0",model_name="m"'
    usage = "gpu_cache_usage_perc" if v0 else "kv_cache_usage_perc"
    between = "time_per_output_token_seconds" if v0 else "inter_token_latency_seconds"
    return f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}
vllm:num_requests_waiting{{{labels}}} {waiting}
vllm:{usage}{{{labels}}} {kv}
vllm:num_preemptions_total{{{labels}}} {preemptions}
vllm:generation_tokens_total{{{labels}}} {tokens}
vllm:request_success_total{{finished_reason="stop",{labels}}} {finished}
vllm:time_to_first_token_seconds_bucket{{le="0.25",{labels}}} {ttft[0]}
vllm:time_to_first_token_seconds_bucket{{le="2.5",{labels}}} {ttft[1]}
vllm:time_to_first_token_seconds_bucket{{le="+Inf",{labels}}} {ttft[2]}
vllm:time_to_first_token_seconds_count{{{labels}}} {ttft[2]}
vllm:time_to_first_token_seconds_sum{{{labels}}} {0.1 * ttft[0] + 1.0 * (ttft[1] - ttft[0]) + 4.0 * (ttft[2] - ttft[1])}
vllm:request_queue_time_seconds_count{{{labels}}} {finished}
vllm:request_queue_time_seconds_sum{{{labels}}} {queue_s}
vllm:e2e_request_latency_seconds_count{{{labels}}} {finished}
vllm:e2e_request_latency_seconds_sum{{{labels}}} {finished * 5.0}
vllm:{between}_bucket{{le="0.05",{labels}}} {itl[0]}
vllm:{between}_bucket{{le="+Inf",{labels}}} {itl[1]}
vllm:{between}_count{{{labels}}} {itl[1]}
vllm:{between}_sum{{{labels}}} {itl[1] * 0.02}
"""


@contextmanager
def replaying(texts: Sequence[str], health: int = 200) -> Iterator[int]:
    """A server on loopback that answers each further request for metrics with the next of `texts`, then with the last;
    yields its port."""
    left = list(texts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b""
            if self.path == "/metrics":
                body = (left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(health if self.path == "/health" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
