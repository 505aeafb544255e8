-- Which scenarios does the run hold, and did each succeed?
-- column scenario_id: Number of the scenario within the run.
-- column scenario: What the user calls it.
-- column is_baseline: Whether the others are compared with it.
-- column status: ok or failed.
-- column error: Why it failed; null if it did not.
-- column workload: The requests that were replayed.
-- column model: The model.
-- column policy: The policy stack.
-- column machine: The machine with its variations.
-- column mode: captured or open.
-- column engine: The serving engine's rules by name and version.
-- column rate_ratio: Arrival rate as a multiple of the trace's own.
-- column accelerators: Accelerators in all.
-- column tensor_parallel: Accelerators that share one copy of the model.
-- column instances: Copies of the model.
-- column weight_dtype: Number format of the weights.
-- column prices: The price book.
-- column offered_load_ratio: Busy time that the requests ask for over the trace's span; above 1 the queue grows.
-- column certainty: The least certain input of the scenario.
-- column may_lose: What its policy takes away that may change answers: context, tokens, layers, precision, or nothing.
-- column context_limit_tokens: The longest context that the model is published for; null where its file does not say.
-- column longest_request_tokens: Prompt and output of the longest request together.
-- column beyond_context_requests: Requests longer than the model's context; they are served all the same.
-- column data_parallel: Groups of accelerators in a copy that attend to requests of their own.
-- column expert_parallel: Parts that the routed experts are dealt out to in a copy.
-- column pipeline_parallel: Stages that the layers are dealt out to in a copy.
-- column prefill_machine: The machine of the copies that only compute prompts; null without them.
-- column prefill_instances: How many of the copies these are.
-- column prefill_link: The link that they send KV over.
-- column placement: Memories below the accelerators' own; null without them.
-- column drafted_tokens: Tokens drafted for each request and step; null without drafting.
-- column accept_ratio: Chance that a drafted token is accepted, given that those before it were.
-- column routing: Which instance gets a request.
-- column concurrency: Requests at a time, where each that ends lets the next one in; else null.
-- column step_tokens: Tokens that an engine step computes at most.
-- column running_requests: Requests that an instance runs at a time at most.
-- column look_steps: Steps from one look for arrivals to the next while requests only decode.
-- column prefix_cache: Whether full prompt blocks are shared by their hash.
-- column kv_blocks: KV blocks of 16 tokens per instance, if pinned; null where it is what the memory leaves.
-- column bound_by: The booth with the most step time.
-- column bound_ratio: Its share of the step time.
-- column run_id: The run.
SELECT
  scenario_id, name AS scenario, is_baseline, status, error, workload, model, policy, machine, mode, engine, rate_ratio,
  accelerators, tensor_parallel, instances, weight_dtype, prices, offered_load_ratio, certainty,
  may_lose, context_limit_tokens, longest_request_tokens, beyond_context_requests,
  data_parallel, expert_parallel, pipeline_parallel, prefill_machine, prefill_instances, prefill_link, placement,
  drafted_tokens, accept_ratio, routing, concurrency, step_tokens, running_requests, look_steps, prefix_cache, kv_blocks,
  bound_by, bound_ratio, run_id
FROM scenarios
ORDER BY scenario_id
