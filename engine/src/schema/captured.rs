//! What captures of GPU runs and of serving engines hold: kernels, named ranges, counters, memory accesses, KV events, and
//! measured operations of known shape.
//!
//! A capture is hardware truth, so that nothing here is computed by a model. What a format does not record is null.

use super::Type::{Bool, F64, I64, ListU32, ListU64, Text, U32, U64};
use super::{Scope, Table, known, maybe};

/// GPU work.
pub static KERNELS: Table = Table {
    name: "kernels",
    doc: "a GPU kernel, copy, fill or collective",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("kernel_id", U64, "", "Number within the source, from 0, in file order."),
        known(
            "category",
            Text,
            "",
            "kernel, copy, fill or collective, by the kind of row; a kernel's booth is found later.",
        ),
        known("name", Text, "", "The name, demangled where the capture has it."),
        maybe("start_ns", I64, "ns", "When it started, on the source's clock."),
        maybe("duration_ns", I64, "ns", "How long it ran."),
        maybe("process", U64, "", "Process that launched it."),
        maybe("device", U32, "", "Device, as the capture counts them."),
        maybe("stream", U64, "", "Stream or queue."),
        maybe("correlation", U64, "", "Joins the kernel with its launch, within one process."),
        maybe("launch_ns", I64, "ns", "When the host launched it; unknown where the launch was not captured."),
        maybe("bytes", U64, "bytes", "Bytes copied or filled."),
        maybe(
            "copy_kind",
            Text,
            "",
            "host_to_device, device_to_host, device_to_device, peer_to_peer, host_to_host and others.",
        ),
        maybe("grid_x", U32, "", "Blocks of the grid."),
        maybe("grid_y", U32, "", "Blocks of the grid."),
        maybe("grid_z", U32, "", "Blocks of the grid."),
        maybe("block_x", U32, "", "Threads of a block."),
        maybe("block_y", U32, "", "Threads of a block."),
        maybe("block_z", U32, "", "Threads of a block."),
        maybe("registers", U32, "", "Registers of a thread."),
        maybe("shared_bytes", U64, "bytes", "Shared memory of a block, static and dynamic."),
        maybe("dram_read_bytes", U64, "bytes", "Bytes read from device memory, by counter."),
        maybe("dram_write_bytes", U64, "bytes", "Bytes written to device memory, by counter."),
        maybe("l2_bytes", U64, "bytes", "Bytes between L1 and L2, by counter."),
        maybe("flops", F64, "", "Floating-point operations, by counter."),
    ],
};

/// Counters of kernels.
pub static COUNTERS: Table = Table {
    name: "counters",
    doc: "a hardware counter of one kernel, under the name that the profiler gave it",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("kernel_id", U64, "", "The kernel."),
        known("counter", Text, "", "Name of the counter."),
        maybe("unit", Text, "", "Base unit of the value: byte, ns, hertz, % and others."),
        maybe("value", F64, "", "The value in that unit; unknown where the profiler wrote none."),
        maybe("text", Text, "", "What was written, where it is no number."),
    ],
};

/// Named ranges.
pub static ANNOTATIONS: Table = Table {
    name: "annotations",
    doc: "a range that the program or a framework named: an NVTX range, a framework operator, a profiler step",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("annotation_id", U64, "", "Number within the source, from 0, in file order."),
        known("name", Text, "", "The text."),
        known("category", Text, "", "nvtx, operator, runtime, step or the capture's own word."),
        maybe("domain", Text, "", "Domain of the range."),
        maybe("start_ns", I64, "ns", "When it began, on the source's clock."),
        maybe("duration_ns", I64, "ns", "How long it took; 0 for an instant, unknown where the end was not captured."),
        maybe("process", U64, "", "Process."),
        maybe("thread", U64, "", "Thread."),
        maybe("correlation", U64, "", "Joins a launch with its kernel, within one process."),
        maybe("parent", U64, "", "The range or operator that this one is part of, where the capture says so."),
    ],
};

/// Memory accesses of warps.
pub static ACCESSES: Table = Table {
    name: "accesses",
    doc: "one memory instruction of one warp",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("access_id", U64, "", "Number within the source, from 0, in file order."),
        known("kernel", Text, "", "Name of the kernel."),
        known("launch", U32, "", "Number of the kernel's launch within the source, from 0."),
        known("cta_x", U32, "", "Thread block."),
        known("cta_y", U32, "", "Thread block."),
        known("cta_z", U32, "", "Thread block."),
        known("warp", U32, "", "Warp within the block."),
        maybe("pc", U64, "", "Address of the instruction."),
        known("opcode", Text, "", "The instruction as it was traced."),
        known("space", Text, "", "global, local, shared, generic or unknown."),
        known("is_write", Bool, "", "Whether memory is written."),
        maybe("active_lanes", U32, "", "Lanes that took part; unknown where the tracer loses the mask."),
        maybe("width_bytes", U32, "bytes", "Bytes of each lane."),
        known("address", U64, "", "Lowest address."),
        maybe("bytes", U64, "bytes", "Bytes that the lanes asked for, together."),
        known("sectors", U32, "", "Distinct 32-byte sectors."),
        known("sector_ids", ListU64, "", "Those sectors: their address over 32, in rising order."),
    ],
};

/// KV events of a serving engine.
pub static BLOCK_EVENTS: Table = Table {
    name: "block_events",
    doc: "what an engine did with one KV block, or with all of them",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        maybe("seq", U64, "", "Number of the message; a gap means lost events."),
        known("event_index", U32, "", "Position of the event within its message, from 0."),
        known("block_index", U32, "", "Position of the block within its event, from 0."),
        maybe("time_ns", I64, "ns", "When the engine sent it, since 1970."),
        maybe("received_ns", I64, "ns", "When it was received, since 1970."),
        known("event", Text, "", "stored, removed, cleared, updated or created."),
        maybe(
            "block_hash",
            U64,
            "",
            "The hash; of a hash of bytes its first eight, big-endian. Unknown for `cleared`.",
        ),
        maybe("block_hash_hex", Text, "", "A hash of bytes, whole, in hex."),
        maybe("parent_hash", U64, "", "Hash of the block before it."),
        maybe("parent_hash_hex", Text, "", "That hash, whole, in hex, where hashes are bytes."),
        maybe("block_tokens", U32, "tokens", "Tokens of the block."),
        maybe("token_ids", ListU32, "", "The block's tokens, where they were sent as single ids."),
        maybe("medium", Text, "", "Where the block is: GPU, CPU and others, as the engine says it."),
        maybe("lora", Text, "", "Adapter, by name or number."),
        maybe("salt", Text, "", "What keeps tenants apart."),
        maybe("group_index", U32, "", "KV cache group."),
        maybe("attention", Text, "", "Kind of attention of the group, as the engine says it."),
        maybe("rank", U32, "", "Data-parallel rank."),
        maybe("topic", Text, "", "Topic of the message."),
    ],
};

/// Measured operations.
pub static OP_TIMINGS: Table = Table {
    name: "op_timings",
    doc: "the measured time of one operation of known shape on one device",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known(
            "op",
            Text,
            "",
            "gemm, attention_context, attention_generation, attention_mixed, mla_context, mla_generation, \
             mla_context_module, mla_generation_module, moe, all_reduce, all_gather, reduce_scatter, all_to_all, \
             moe_dispatch, moe_combine, and layers by name.",
        ),
        maybe("framework", Text, "", "vllm, sglang, trtllm and others, in lower case."),
        maybe("version", Text, "", "Version of the framework or library."),
        known("device", Text, "", "Device as it was named."),
        maybe("kernel_source", Text, "", "Library or kernel that was run."),
        maybe("backend", Text, "", "Backend or implementation."),
        maybe(
            "distribution",
            Text,
            "",
            "How tokens fall on experts; `experts_hit` where `active_experts` counts the experts that were hit.",
        ),
        maybe("model", Text, "", "Model whose shape it is."),
        maybe("dtype", Text, "", "Number format of the arithmetic."),
        maybe("kv_dtype", Text, "", "Number format of the KV cache."),
        maybe("weight_dtype", Text, "", "Number format of weights, where it is named apart."),
        maybe("batch", U32, "requests", "Requests, or sequences that decode."),
        maybe("new_tokens", U64, "tokens", "Tokens computed: per request for attention, in all for other operations."),
        maybe("past_tokens", U64, "tokens", "KV tokens per request before those."),
        maybe("prefill_tokens", U64, "tokens", "Tokens of a prefill chunk in the same batch."),
        maybe("prefill_past_tokens", U64, "tokens", "KV tokens before that chunk."),
        maybe("query_heads", U32, "", "Query heads."),
        maybe("kv_heads", U32, "", "KV heads."),
        maybe("head_dim", U32, "", "Width of a head."),
        maybe("window_tokens", U32, "tokens", "Window of sliding attention; unknown for none."),
        maybe("m", U64, "", "Rows of the product."),
        maybe("n", U64, "", "Columns of the product."),
        maybe("k", U64, "", "Inner width of the product."),
        maybe("hidden", U32, "", "Width of the model."),
        maybe("intermediate", U32, "", "Width of an expert."),
        maybe("experts", U32, "", "Experts."),
        maybe("active_experts", U32, "", "Experts of a token, or experts that were hit where `distribution` says so."),
        maybe("tensor_parallel", U32, "", "Devices that share each weight."),
        maybe("expert_parallel", U32, "", "Devices that share the experts."),
        maybe("devices", U32, "", "Devices of a collective."),
        maybe("nodes", U32, "", "Nodes of a collective."),
        maybe("sms", U32, "", "Streaming multiprocessors given to communication."),
        maybe("message_bytes", U64, "bytes", "Bytes of a collective's message, per device."),
        maybe("skew", F64, "", "Longest context of the batch over its mean, where contexts differ."),
        maybe(
            "long_requests",
            U32,
            "requests",
            "Requests of the longest context, where there are two lengths; the others share the shorter one.",
        ),
        known("latency_ns", F64, "ns", "Mean time of one run."),
        maybe("latency_max_ns", F64, "ns", "Longest time, where it was recorded."),
        maybe("power_w", F64, "W", "Mean power, where it was recorded."),
    ],
};
