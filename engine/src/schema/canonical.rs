//! What ingestion produces.

use super::Type::{F32, F64, I64, ListF32, ListU32, ListU64, Text, U16, U32, U64, Vector};
use super::{Scope, Table, known, maybe};

/// Ingested files.
pub static SOURCES: Table = Table {
    name: "sources",
    doc: "an ingested file",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "Number of the source within the store, from 0."),
        known("path", Text, "", "The path as given on the command line."),
        known("format", Text, "", "The adapter that read it."),
        known(
            "sha256",
            Text,
            "",
            "SHA-256 in hex: of the file's bytes as stored on disk, or of its hash and those of its companions.",
        ),
        known("file_bytes", U64, "bytes", "Size of the file on disk."),
        known("compression", Text, "", "none, gzip, zstd or xz, by magic bytes."),
        known("rows_in", U64, "rows", "Rows found in the file."),
        known("rows_out", U64, "rows", "Rows kept."),
        known("rows_rejected", U64, "rows", "Rows that could not be read; each is in `rejects`."),
        maybe("time_unit", Text, "", "Unit of the file's instants: ns, us, ms or s."),
        maybe(
            "clock",
            Text,
            "",
            "What the instants count from: trace_start, epoch, wall, or monotonic for an unknown start.",
        ),
        maybe("block_tokens", U32, "tokens", "Tokens of one block of the file."),
        maybe("rounding", Text, "", "How a partial last block is counted: ceil or floor."),
        maybe("hash_scope", Text, "", "Where equal ids mean equal content: file or global."),
        maybe(
            "id_kind",
            Text,
            "",
            "prefix: the id stands for the block and all before it; content: for the block alone.",
        ),
        known("settings_origin", Text, "", "How those settings were found: format, detected or flag."),
        maybe("companions", Text, "", "Files that were read beside it: SHA-256 and name, one a line."),
    ],
};

/// What ingestion skipped, guessed or repaired.
pub static IMPORT_LOG: Table = Table {
    name: "import_log",
    doc: "a kind of thing that was skipped, guessed or repaired while a file was read",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("severity", Text, "", "info, notice, data_loss or error."),
        known("code", Text, "", "A stable name of the kind of event."),
        known("count", U64, "", "How often it happened."),
        maybe("first_line", U64, "", "Line of the first, from 1."),
        maybe("first_byte", U64, "bytes", "Offset of the first in the decompressed file."),
        known("message", Text, "", "What happened."),
        maybe("advice", Text, "", "What can be done about it."),
    ],
};

/// Rows that could not be read.
pub static REJECTS: Table = Table {
    name: "rejects",
    doc: "a row that could not be read and was set aside",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("line", U64, "", "Line in the file, from 1."),
        known("column", U64, "", "Column of the offending text in bytes, from 1."),
        known("byte_offset", U64, "bytes", "Offset of the row in the decompressed file."),
        known("code", Text, "", "A stable name of the reason."),
        known("expected", Text, "", "What was expected."),
        known("found", Text, "", "What was found, shortened to 80 characters."),
        known("raw", Text, "", "The row as it was, at most 4096 bytes, invalid UTF-8 replaced."),
    ],
};

/// Attention recordings.
pub static RECORDINGS: Table = Table {
    name: "recordings",
    doc: "an ingested attention recording",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("model", Text, "", "Name of the recorded model."),
        known("layers", U32, "", "Layers of the model."),
        known("query_heads", U32, "", "Query heads per layer."),
        known("kv_heads", U32, "", "KV heads per layer."),
        known("head_dim", U32, "", "Width of a head."),
        known("block_tokens", U32, "tokens", "Tokens per recorded block; 1 for single tokens."),
        known("grade", Text, "", "blocks, tokens or vectors."),
        maybe("weights", Text, "", "Number format of the weights during recording."),
        maybe("device", Text, "", "What it was recorded on."),
        maybe("licence", Text, "", "Licence of the recorded model."),
    ],
};

/// Requests.
pub static REQUESTS: Table = Table {
    name: "requests",
    doc: "a request: how much it read and wrote, when it came, which KV blocks its prompt is made of",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "Number of the request within the store."),
        known("source_id", U32, "", "The source it came from."),
        maybe("source_key", Text, "", "Its id in the source."),
        maybe("session_id", Text, "", "The conversation it belongs to."),
        maybe("turn", U32, "", "Position in the conversation, from 0."),
        maybe("parent_request_id", U64, "", "The request that it continues."),
        maybe("tenant", Text, "", "Who sent it."),
        maybe("model", Text, "", "The model it asked for."),
        maybe("kind", Text, "", "What kind of work it is, in the source's words."),
        maybe("arrival_ns", I64, "ns", "When it came, on the source's clock."),
        maybe("delay_ns", I64, "ns", "Pause after the request before it in its session."),
        known("prompt_tokens", U32, "tokens", "Tokens of the prompt."),
        known("output_tokens", U32, "tokens", "Tokens that were generated."),
        maybe("block_tokens", U32, "tokens", "Tokens per entry of `block_hashes`."),
        maybe("block_hashes", ListU64, "", "Ids of the prompt's KV blocks in order."),
        known("status", Text, "", "ok, no_output where nothing was generated, error or cancelled."),
        maybe("prompt_token_ids", ListU32, "", "The prompt, tokenised."),
        maybe("output_token_ids", ListU32, "", "The output, tokenised."),
        maybe("measured_ttft_ns", I64, "ns", "Time to first token that the run measured."),
        maybe("measured_tpot_ns", I64, "ns", "Mean time per output token that the run measured."),
        maybe("measured_e2e_ns", I64, "ns", "End-to-end time that the run measured."),
        maybe("measured_hit_tokens", U32, "tokens", "Prompt tokens that the run found in its prefix cache."),
    ],
};

/// What a request's context is made of.
pub static CONTEXT_SEGMENTS: Table = Table {
    name: "context_segments",
    doc: "a piece of a request's context, in order",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("position", U32, "", "Place in the context, from 0."),
        maybe("segment_id", Text, "", "Name of the content; equal names within a source mean equal content."),
        known(
            "kind",
            Text,
            "",
            "system, tools, memory_index, topic, user, assistant, thinking, tool_use, tool_result, passage, history, summary or unknown.",
        ),
        known("tokens", U32, "tokens", "Length."),
        maybe("born_turn", U32, "", "Turn in which it entered the context, from 0."),
    ],
};

/// What an engine reported about itself while it ran.
pub static ENGINE_SAMPLES: Table = Table {
    name: "engine_samples",
    doc: "one metric of a serving engine, as it was sampled while the engine ran",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        maybe("time_ns", I64, "ns", "When it was sampled, on the source's clock; unknown for what held all the time."),
        known(
            "metric",
            Text,
            "",
            "kv_cache_used_ratio, running_requests, waiting_requests, prompt_tokens_per_s, output_tokens_per_s, \
             kv_cache_blocks, block_tokens and others; the unit is in the name.",
        ),
        known("value", F64, "", "The value, in the unit of the metric's name."),
    ],
};

/// Captured steps.
pub static STEPS: Table = Table {
    name: "steps",
    doc: "a captured step of a request: one prefill, or one decoded token",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("step", U32, "", "0 is the prefill, then one per decoded token."),
        maybe("engine_step", U64, "", "The engine step it was part of."),
        maybe("instance", U32, "", "The instance that ran it."),
        known("phase", Text, "", "prefill or decode."),
        maybe("start_ns", I64, "ns", "When it started."),
        maybe("duration_ns", I64, "ns", "How long it took."),
        known("context_tokens", U32, "tokens", "Tokens of KV after the step."),
        known("new_tokens", U32, "tokens", "Tokens computed in the step."),
        maybe("batch_requests", U32, "requests", "Requests in the same engine step."),
    ],
};

/// Recorded attention.
pub static ATTENTION: Table = Table {
    name: "attention",
    doc: "where one KV head of one layer looked in one decode step",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("step", U32, "", "The decode step, from 1."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("context_tokens", U32, "tokens", "Tokens that could be attended to."),
        known("block_tokens", U16, "tokens", "Tokens per entry of the lists; 1 for single tokens."),
        known("mass", ListF32, "ratio", "Softmax mass per block, mean over the query heads of the group; sums to 1."),
        maybe("mass_max", ListF32, "ratio", "Upper bound of any head's mass per block."),
        maybe("page_bound", ListF32, "", "Quest's upper bound of q.k/sqrt(d) per block."),
        maybe("sum_sq", F32, "", "Sum of the squared weights of single tokens, mean over the group."),
        maybe("out_norm", F32, "", "Norm of the attention output."),
        maybe("q_norm", F32, "", "Mean norm of the group's queries."),
    ],
};

/// Positions that a sparse attention read.
pub static SELECTIONS: Table = Table {
    name: "selections",
    doc: "which KV positions the indexer of a sparse attention selected for one layer in one decode step; how much mass they got is not known",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("step", U32, "", "The decode step, from 1."),
        known("layer", U16, "", "The layer, from 0."),
        known("context_tokens", U32, "tokens", "Tokens that could be selected."),
        known("block_tokens", U16, "tokens", "Tokens of the engine's KV blocks; 1 where it names none."),
        known("positions", ListU32, "", "The selected positions in the order of the file, highest score first."),
        maybe("hbm_bytes", U64, "bytes", "Bytes of KV that the engine read from its own memory for them."),
        maybe("hbm_latency_ns", I64, "ns", "How long that took."),
        maybe("local_pool_bytes", U64, "bytes", "Bytes read from a pool on the same host."),
        maybe("local_pool_latency_ns", I64, "ns", "How long that took."),
        maybe("remote_pool_bytes", U64, "bytes", "Bytes read from a pool on another host."),
        maybe("remote_pool_latency_ns", I64, "ns", "How long that took."),
    ],
};

/// Scores of prompt tokens.
pub static PREFILL_SCORES: Table = Table {
    name: "prefill_scores",
    doc: "a score of each prompt token for one KV head, taken during prefill",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known(
            "channel",
            Text,
            "",
            "window_rows, last_row, column_sum, key_diff, expected_attention or repeat_context.",
        ),
        maybe("rows", U32, "", "Query rows that entered the score."),
        known("score", ListF32, "", "The score per prompt token."),
    ],
};

/// Norms and angles of K and V.
pub static KV_STATS: Table = Table {
    name: "kv_stats",
    doc: "norms and neighbour-layer cosines of the K and V vectors of one KV head",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("k_norm", ListF32, "", "Norm of K per token, after rotation."),
        known("v_norm", ListF32, "", "Norm of V per token."),
        maybe("k_cos_next_layer", ListF32, "", "Cosine of K with the next layer's K of the same token."),
        maybe("v_cos_next_layer", ListF32, "", "Cosine of V with the next layer's V of the same token."),
    ],
};

/// Query vectors.
pub static QUERIES: Table = Table {
    name: "queries",
    doc: "the query vector of one query head in one decode step",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("step", U32, "", "The decode step, from 1."),
        known("layer", U16, "", "The layer, from 0."),
        known("query_head", U16, "", "The query head, from 0."),
        known("q", Vector, "", "The query after rotation."),
    ],
};

/// K and V vectors.
pub static KV_VECTORS: Table = Table {
    name: "kv_vectors",
    doc: "the K and V vectors of one token in one KV head",
    scope: Scope::Store,
    columns: &[
        known("request_id", U64, "", "The request."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("token", U32, "", "Position of the token."),
        known("k", Vector, "", "K after rotation."),
        known("v", Vector, "", "V."),
    ],
};
