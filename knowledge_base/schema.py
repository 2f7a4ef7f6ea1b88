"""The tables of the knowledge base. A record is JSON in `body`; other columns serve lookups.

A released migration is never changed: add another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

_V1 = (
    "CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE incidents (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, origin TEXT NOT NULL, body TEXT NOT NULL,
        words TEXT NOT NULL, grams TEXT NOT NULL)""",
    """CREATE TABLE signatures (
        value TEXT NOT NULL, incident TEXT NOT NULL, PRIMARY KEY (value, incident)) WITHOUT ROWID""",
    "CREATE INDEX signatures_incident ON signatures (incident)",
    # words and grams are terms made in Python, separated by spaces: unicode61 only splits them.
    """CREATE VIRTUAL TABLE incidents_fts USING fts5 (
        words, grams, content='incidents', content_rowid='n',
        tokenize="unicode61 remove_diacritics 0 tokenchars '_'")""",
    """CREATE TRIGGER incidents_ai AFTER INSERT ON incidents BEGIN
        INSERT INTO incidents_fts (rowid, words, grams) VALUES (new.n, new.words, new.grams); END""",
    """CREATE TRIGGER incidents_ad AFTER DELETE ON incidents BEGIN
        INSERT INTO incidents_fts (incidents_fts, rowid, words, grams)
        VALUES ('delete', old.n, old.words, old.grams); END""",
    """CREATE TRIGGER incidents_au AFTER UPDATE ON incidents BEGIN
        INSERT INTO incidents_fts (incidents_fts, rowid, words, grams)
        VALUES ('delete', old.n, old.words, old.grams);
        INSERT INTO incidents_fts (rowid, words, grams) VALUES (new.n, new.words, new.grams); END""",
    """CREATE TABLE diagnoses (
        id TEXT PRIMARY KEY, created TEXT NOT NULL, verdict TEXT NOT NULL, cause TEXT, ticket INTEGER,
        body TEXT NOT NULL)""",
    """CREATE TABLE tickets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dedup_key TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
        updated TEXT NOT NULL, body TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX tickets_open ON tickets (dedup_key) WHERE state = 'open'",
)

# Terms are made in Python, separated by spaces: unicode61 only splits them. Initial symptoms are separate from later
# knowledge; concepts and pairs of Chinese characters have columns, and so weights, of their own.
_UNINDEX = """INSERT INTO incidents_fts (incidents_fts, rowid, symptom, concepts, later, grams)
    VALUES ('delete', old.n, old.symptom, old.concepts, old.later, old.grams)"""
_FORGET_ALL = "DELETE FROM features WHERE n = old.n"
_INDEX = """INSERT INTO incidents_fts (rowid, symptom, concepts, later, grams)
    VALUES (new.n, new.symptom, new.concepts, new.later, new.grams)"""
# Every card counts for the empty feature, which holds the total.
_COUNT = """INSERT INTO feature_counts (feature, cards) VALUES ({0}, 1)
    ON CONFLICT (feature) DO UPDATE SET cards = cards + 1"""
_DISCOUNT = "UPDATE feature_counts SET cards = cards - 1 WHERE feature = {0}"
_FORGET = "DELETE FROM feature_counts WHERE feature = {0} AND cards <= 0"

_V2 = (
    *(f"DROP TRIGGER incidents_{name}" for name in ("ai", "ad", "au")),
    "DROP TABLE incidents_fts",
    "DROP TABLE signatures",
    "ALTER TABLE incidents RENAME TO incidents_v1",
    """CREATE TABLE incidents (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, origin TEXT NOT NULL, state TEXT NOT NULL, cause TEXT,
        updated TEXT NOT NULL, body TEXT NOT NULL, symptom TEXT NOT NULL, concepts TEXT NOT NULL, later TEXT NOT NULL,
        grams TEXT NOT NULL)""",
    # `indexing.reindex` fills the index after the migration.
    """INSERT INTO incidents (n, id, origin, state, updated, body, symptom, concepts, later, grams)
        SELECT n, id, origin, 'reviewed', '', body, '', '', '', '' FROM incidents_v1""",
    "DROP TABLE incidents_v1",
    """CREATE VIRTUAL TABLE incidents_fts USING fts5 (
        symptom, concepts, later, grams, content='incidents', content_rowid='n',
        tokenize="unicode61 remove_diacritics 0 tokenchars '_'")""",
    # FTS5 reports a damaged file if a row is deleted that was never inserted.
    "INSERT INTO incidents_fts (rowid, symptom, concepts, later, grams) SELECT n, '', '', '', '' FROM incidents",
    "CREATE VIRTUAL TABLE incidents_terms USING fts5vocab('incidents_fts', 'row')",
    # Inverted index: which cards (`n`) have a typed feature or, as ``sig:...``, an exact signature.
    "CREATE TABLE features (feature TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (feature, n)) WITHOUT ROWID",
    "CREATE INDEX features_card ON features (n)",
    "CREATE TABLE feature_counts (feature TEXT PRIMARY KEY, cards INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TRIGGER features_ai AFTER INSERT ON features BEGIN {_COUNT.format('new.feature')}; END",
    "CREATE TRIGGER features_ad AFTER DELETE ON features BEGIN"
    f" {_DISCOUNT.format('old.feature')}; {_FORGET.format('old.feature')}; END",
    f"""CREATE TRIGGER incidents_ai AFTER INSERT ON incidents BEGIN {_INDEX}; {_COUNT.format("''")}; END""",
    f"""CREATE TRIGGER incidents_ad AFTER DELETE ON incidents BEGIN
        {_UNINDEX}; {_FORGET_ALL}; {_DISCOUNT.format("''")}; END""",
    "CREATE TRIGGER incidents_au AFTER UPDATE OF symptom, concepts, later, grams ON incidents BEGIN"
    f" {_UNINDEX}; {_INDEX}; END",
    "INSERT INTO feature_counts (feature, cards) SELECT '', count(*) FROM incidents",
    """CREATE TABLE occurrences (
        incident TEXT NOT NULL, key TEXT NOT NULL, seen TEXT NOT NULL, host TEXT NOT NULL,
        PRIMARY KEY (incident, key)) WITHOUT ROWID""",
    "CREATE INDEX occurrences_key ON occurrences (key)",
    """CREATE TABLE feedback (
        incident TEXT NOT NULL, diagnosis TEXT NOT NULL, verdict TEXT NOT NULL, comment TEXT NOT NULL,
        at TEXT NOT NULL, settled INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (incident, diagnosis)) WITHOUT ROWID""",
    # Hashes of every content a card ever had, so that a repeated import is recognized even after an edit.
    "CREATE TABLE hashes (hash TEXT PRIMARY KEY, incident TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX incidents_state ON incidents (state, updated)",
    "CREATE INDEX incidents_updated ON incidents (updated)",
    "CREATE INDEX diagnoses_ticket ON diagnoses (ticket, created)",
    "DELETE FROM state WHERE key IN ('curated', 'index')",
)

_V3 = (
    # Acknowledged tickets are live too, so the unique index on open tickets is replaced below.
    "DROP INDEX tickets_open",
    # The record is the last column: SQLite reads all columns before the one it needs.
    "ALTER TABLE tickets RENAME TO tickets_v2",
    """CREATE TABLE tickets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dedup_key TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
        updated TEXT NOT NULL, revision INTEGER NOT NULL, origin TEXT NOT NULL, fault TEXT, severity TEXT NOT NULL,
        category TEXT NOT NULL, component TEXT NOT NULL, occurrences INTEGER NOT NULL, title TEXT NOT NULL,
        target TEXT NOT NULL, cause TEXT NOT NULL, verdict TEXT NOT NULL, assignee TEXT NOT NULL, closed_as TEXT,
        body TEXT NOT NULL)""",
    """INSERT INTO tickets SELECT id, dedup_key, state, created, updated, 1, 'diagnosis', dedup_key,
        json_extract(body, '$.severity'), json_extract(body, '$.category'), json_extract(body, '$.component'),
        json_extract(body, '$.occurrences'), '', json_extract(body, '$.diagnosis.target'),
        coalesce(json_extract(body, '$.diagnosis.cause'), ''), json_extract(body, '$.diagnosis.verdict'), '', NULL,
        json_set(body, '$.schema_version', '2', '$.fault', dedup_key,
            '$.ended', CASE state WHEN 'resolved' THEN updated END)
        FROM tickets_v2""",
    # Ticket numbers are never reused.
    """UPDATE sqlite_sequence SET seq = (SELECT seq FROM sqlite_sequence WHERE name = 'tickets_v2')
        WHERE name = 'tickets'""",
    "DROP TABLE tickets_v2",
    "CREATE UNIQUE INDEX tickets_live ON tickets (dedup_key) WHERE state IN ('open', 'acknowledged')",
    "CREATE INDEX tickets_key ON tickets (dedup_key)",
    "CREATE INDEX tickets_fault ON tickets (fault) WHERE fault IS NOT NULL",
    "CREATE INDEX tickets_state ON tickets (state, updated)",
    "CREATE INDEX tickets_updated ON tickets (updated)",
    "CREATE INDEX tickets_assignee ON tickets (assignee, state)",
    """CREATE TABLE ticket_events (
        n INTEGER PRIMARY KEY, ticket INTEGER NOT NULL, revision INTEGER NOT NULL, what TEXT NOT NULL, by TEXT NOT NULL,
        at TEXT NOT NULL, detail TEXT NOT NULL)""",
    "CREATE INDEX ticket_events_ticket ON ticket_events (ticket, n)",
    # Reconstructed history of older tickets; the actors are unknown.
    """INSERT INTO ticket_events (ticket, revision, what, by, at, detail)
        SELECT id, 1, 'opened', '', created, '' FROM tickets ORDER BY id""",
    """INSERT INTO ticket_events (ticket, revision, what, by, at, detail)
        SELECT id, 1, 'resolved', '', updated, coalesce(json_extract(body, '$.resolution'), '') FROM tickets
        WHERE state = 'resolved' ORDER BY id""",
    # Background tasks. Times here and below are seconds since the epoch.
    """CREATE TABLE tasks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
        payload TEXT NOT NULL, result TEXT NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL, owner TEXT NOT NULL,
        lease REAL NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL)""",
    "CREATE INDEX tasks_due ON tasks (state, kind, due)",
    # Delivery of a ticket to a tracker: wanted revision, delivered revision (`told`), creation in progress, owner of
    # the lease.
    """CREATE TABLE deliveries (
        sink TEXT NOT NULL, ticket INTEGER NOT NULL, wanted INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0,
        remote TEXT NOT NULL DEFAULT '', url TEXT NOT NULL DEFAULT '', underway REAL,
        attempts INTEGER NOT NULL DEFAULT 0,
        due REAL NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',
        owner TEXT NOT NULL DEFAULT '', lease REAL NOT NULL DEFAULT 0, memory TEXT NOT NULL DEFAULT '{}',
        PRIMARY KEY (sink, ticket)) WITHOUT ROWID""",
    "CREATE INDEX deliveries_remote ON deliveries (sink, remote) WHERE remote != ''",
    "CREATE INDEX deliveries_due ON deliveries (due) WHERE parked = 0 AND told < wanted",
    "CREATE INDEX deliveries_ticket ON deliveries (ticket)",
    """CREATE TRIGGER deliveries_wanted AFTER UPDATE OF revision ON tickets WHEN new.revision != old.revision BEGIN
        UPDATE deliveries SET wanted = new.revision WHERE ticket = new.id; END""",
    # Messages to send to chats, in order.
    """CREATE TABLE messages (
        n INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, channel TEXT NOT NULL, conversation TEXT NOT NULL,
        state TEXT NOT NULL, body TEXT NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL, lease REAL NOT NULL,
        error TEXT NOT NULL, created TEXT NOT NULL)""",
    "CREATE INDEX messages_due ON messages (state, due)",
    # Handled requests, so that repetitions are answered without being handled again.
    """CREATE TABLE seen (
        source TEXT NOT NULL, key TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (source, key)) WITHOUT ROWID""",
    "CREATE INDEX seen_at ON seen (at)",
    # An alert is a row per state that its sender reported. A member is its present state in a group; `told`: the
    # receiver was notified that it fires.
    """CREATE TABLE alerts (
        n INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL, status TEXT NOT NULL,
        starts REAL NOT NULL, received REAL NOT NULL, seen REAL NOT NULL, times INTEGER NOT NULL, name TEXT NOT NULL,
        body TEXT NOT NULL)""",
    "CREATE INDEX alerts_fingerprint ON alerts (fingerprint, seen)",
    "CREATE INDEX alerts_seen ON alerts (seen)",
    """CREATE TABLE alert_groups (
        id TEXT PRIMARY KEY, receiver TEXT NOT NULL, ticket INTEGER, created REAL NOT NULL, due REAL,
        wait REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX alert_groups_due ON alert_groups (due) WHERE due IS NOT NULL",
    "CREATE INDEX alert_groups_ticket ON alert_groups (ticket) WHERE ticket IS NOT NULL",
    """CREATE TABLE alert_members (
        alert_group TEXT NOT NULL, fingerprint TEXT NOT NULL, alert INTEGER NOT NULL, status TEXT NOT NULL,
        starts REAL NOT NULL, told INTEGER NOT NULL, PRIMARY KEY (alert_group, fingerprint)) WITHOUT ROWID""",
    "CREATE INDEX alert_members_alert ON alert_members (alert)",
    "CREATE INDEX alert_members_fingerprint ON alert_members (fingerprint)",
    """CREATE TABLE ticket_alerts (
        ticket INTEGER NOT NULL, alert INTEGER NOT NULL, PRIMARY KEY (ticket, alert)) WITHOUT ROWID""",
    # Subjects of the tickets of alerts, and when a receiver was first notified of a group.
    """CREATE TABLE alert_things (
        thing TEXT NOT NULL, ticket INTEGER NOT NULL, at REAL NOT NULL, PRIMARY KEY (thing, ticket)) WITHOUT ROWID""",
    """CREATE TABLE alert_first (
        receiver TEXT NOT NULL, at REAL NOT NULL, alert_group TEXT NOT NULL,
        PRIMARY KEY (receiver, at, alert_group)) WITHOUT ROWID""",
    "CREATE TABLE silences (id INTEGER PRIMARY KEY AUTOINCREMENT, ends REAL NOT NULL, body TEXT NOT NULL)",
    """CREATE TABLE overrides (
        id INTEGER PRIMARY KEY AUTOINCREMENT, schedule TEXT NOT NULL, ends REAL NOT NULL, body TEXT NOT NULL)""",
    # Chat commands that await confirmation.
    """CREATE TABLE wishes (
        channel TEXT NOT NULL, conversation TEXT NOT NULL, sender TEXT NOT NULL, expires REAL NOT NULL,
        body TEXT NOT NULL, PRIMARY KEY (channel, conversation, sender)) WITHOUT ROWID""",
    # Words of text tickets, and the bands of their signatures, by which near duplicates are found.
    "CREATE TABLE texts (ticket INTEGER PRIMARY KEY, words TEXT NOT NULL)",
    """CREATE TABLE text_bands (
        band INTEGER NOT NULL, ticket INTEGER NOT NULL, PRIMARY KEY (band, ticket)) WITHOUT ROWID""",
    # Centroids of classes: the sum of the vectors of their examples, and the square of its length.
    "CREATE TABLE classes (category TEXT PRIMARY KEY, examples INTEGER NOT NULL, square REAL NOT NULL) WITHOUT ROWID",
    """CREATE TABLE class_terms (
        term TEXT NOT NULL, category TEXT NOT NULL, weight REAL NOT NULL,
        PRIMARY KEY (term, category)) WITHOUT ROWID""",
    # Observations requested in chats, with everyone who waits for the result.
    """CREATE TABLE inquiries (
        id INTEGER PRIMARY KEY AUTOINCREMENT, process TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
        body TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX inquiries_running ON inquiries (process) WHERE state = 'running'",
    # Last subject of a conversation per person, so that "it" can be resolved.
    """CREATE TABLE talks (
        channel TEXT NOT NULL, conversation TEXT NOT NULL, sender TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL,
        PRIMARY KEY (channel, conversation, sender)) WITHOUT ROWID""",
    """CREATE TABLE work_orders (
        source TEXT NOT NULL, key TEXT NOT NULL, ticket INTEGER, body TEXT NOT NULL,
        PRIMARY KEY (source, key)) WITHOUT ROWID""",
    """CREATE TABLE audit (
        n INTEGER PRIMARY KEY, at TEXT NOT NULL, by TEXT NOT NULL, what TEXT NOT NULL, target TEXT NOT NULL,
        outcome TEXT NOT NULL, detail TEXT NOT NULL)""",
)

# Character n-grams of title and symptom have a column of their own. `indexing.reindex` fills it after the migration.
_UNINDEX_V4 = """INSERT INTO incidents_fts (incidents_fts, rowid, symptom, concepts, later, grams, pieces)
    VALUES ('delete', old.n, old.symptom, old.concepts, old.later, old.grams, old.pieces)"""
_INDEX_V4 = """INSERT INTO incidents_fts (rowid, symptom, concepts, later, grams, pieces)
    VALUES (new.n, new.symptom, new.concepts, new.later, new.grams, new.pieces)"""

_V4 = (
    *(f"DROP TRIGGER incidents_{name}" for name in ("ai", "ad", "au")),
    "DROP TABLE incidents_terms",
    "DROP TABLE incidents_fts",
    "ALTER TABLE incidents ADD COLUMN pieces TEXT NOT NULL DEFAULT ''",
    """CREATE VIRTUAL TABLE incidents_fts USING fts5 (
        symptom, concepts, later, grams, pieces, content='incidents', content_rowid='n',
        tokenize="unicode61 remove_diacritics 0 tokenchars '_'")""",
    "INSERT INTO incidents_fts (incidents_fts) VALUES ('rebuild')",
    f"""CREATE TRIGGER incidents_ai AFTER INSERT ON incidents BEGIN {_INDEX_V4}; {_COUNT.format("''")}; END""",
    f"""CREATE TRIGGER incidents_ad AFTER DELETE ON incidents BEGIN
        {_UNINDEX_V4}; {_FORGET_ALL}; {_DISCOUNT.format("''")}; END""",
    "CREATE TRIGGER incidents_au AFTER UPDATE OF symptom, concepts, later, grams, pieces ON incidents BEGIN"
    f" {_UNINDEX_V4}; {_INDEX_V4}; END",
    "DELETE FROM state WHERE key = 'index'",
    # Calls of MCP tools whose results clients fetch later.
    """CREATE TABLE client_tasks (
        id TEXT PRIMARY KEY, client TEXT NOT NULL, server TEXT NOT NULL, tool TEXT NOT NULL, state TEXT NOT NULL,
        created REAL NOT NULL, updated REAL NOT NULL, outcome TEXT NOT NULL)""",
    "CREATE INDEX client_tasks_created ON client_tasks (created)",
)

_V5 = (
    # Stored runs that later ones are compared with, operator by operator.
    """CREATE TABLE operator_baselines (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, digest TEXT NOT NULL, at TEXT NOT NULL,
        body TEXT NOT NULL, UNIQUE (name, digest))""",
    """CREATE TABLE operator_latencies (
        run INTEGER NOT NULL, rank INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, shape TEXT NOT NULL,
        count INTEGER NOT NULL, per_step REAL NOT NULL, total_ns INTEGER NOT NULL, p10_ns INTEGER NOT NULL,
        p50_ns INTEGER NOT NULL, p90_ns INTEGER NOT NULL, p99_ns INTEGER NOT NULL, blocks TEXT NOT NULL,
        block_steps TEXT NOT NULL, PRIMARY KEY (run, rank, kind, name, shape)) WITHOUT ROWID""",
    """CREATE TRIGGER operator_baselines_ad AFTER DELETE ON operator_baselines BEGIN
        DELETE FROM operator_latencies WHERE run = old.id; END""",
)

_V6 = (
    # Vectors of cards by an embedding model: float32, little-endian, length 1. A card that
    # is written again makes its vector stale; the hash of its text tells whether it has to be embedded again.
    """CREATE TABLE card_vectors (
        n INTEGER PRIMARY KEY, model TEXT NOT NULL, dimension INTEGER NOT NULL, hash TEXT NOT NULL,
        stale INTEGER NOT NULL DEFAULT 0, vector BLOB NOT NULL)""",
    "CREATE TRIGGER card_vectors_ad AFTER DELETE ON incidents BEGIN DELETE FROM card_vectors WHERE n = old.n; END",
    """CREATE TRIGGER card_vectors_au AFTER UPDATE OF body ON incidents BEGIN
        UPDATE card_vectors SET stale = 1 WHERE n = new.n; END""",
)


MIGRATIONS = {"v1": _V1, "v2": _V2, "v3": _V3, "v4": _V4, "operator_baselines": _V5, "card_vectors": _V6}
"""The statements of each migration, in the order in which they are applied."""

_SET = "whystall"


def applied(db: Connection) -> set[str]:
    """Return the names of the migrations that were applied to the file, as sqlite-utils keeps them."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = '_sqlite_migrations'").fetchone() is None:
        return set()
    return {name for (name,) in db.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = ?", [_SET])}


def migrate(db: Connection) -> None:
    """Apply the missing migrations, in the transaction of the caller.

    sqlite-utils takes 0.1 s to import, so it is imported for new and old files only.
    """
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

    schema = Migrations(_SET)
    for name, statements in MIGRATIONS.items():

        def run(db: Database, statements: Sequence[str] = statements) -> None:
            for statement in statements:
                db.conn.execute(statement)

        schema(name=name)(run)
    schema.apply(Database(db, execute_plugins=False))
