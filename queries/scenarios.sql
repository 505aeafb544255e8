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
-- column run_id: The run.
SELECT
  scenario_id, name AS scenario, is_baseline, status, error, workload, model, policy, machine, mode, engine, rate_ratio,
  accelerators, tensor_parallel, instances, weight_dtype, prices, offered_load_ratio, certainty,
  may_lose, context_limit_tokens, longest_request_tokens, beyond_context_requests, run_id
FROM scenarios
ORDER BY scenario_id
