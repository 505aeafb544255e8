-- How many pages of KV do the kept tokens of each policy touch?
-- column policy: The policy stack.
-- column recording: The recorded model and grade.
-- column unit_tokens: Tokens that are kept or dropped as one.
-- column page_tokens: Tokens of a page.
-- column steps: Recorded decode steps, summed over requests, layers and KV heads.
-- column kept_ratio: Tokens that a step reads over those of whole pages of its context.
-- column touched_pages_ratio: Pages that hold a kept token of a KV head, over the pages of the context.
-- column layer_touched_pages_ratio: Pages that hold a kept token of any KV head of the layer, over the pages of the context.
-- column page_fill_ratio: Kept tokens of a head over the tokens of the pages that they touch.
WITH weighted AS (
  SELECT *, CAST(steps AS BIGINT) AS weight FROM kept_pages
)
SELECT
  policy, recording, unit_tokens, page_tokens, sum(weight) AS steps,
  sum(kept_tokens * weight) / nullif(sum(context_pages * weight * page_tokens), 0) AS kept_ratio,
  sum(touched_pages * weight) / nullif(sum(context_pages * weight), 0) AS touched_pages_ratio,
  sum(layer_touched_pages * weight) / nullif(sum(context_pages * weight), 0) AS layer_touched_pages_ratio,
  sum(kept_tokens * weight) / nullif(sum(touched_pages * weight * page_tokens), 0) AS page_fill_ratio
FROM weighted
GROUP BY policy, recording, unit_tokens, page_tokens
ORDER BY policy, recording, unit_tokens, page_tokens
