-- How much of a common prefix do two requests keep in common under each policy, and can its blocks still be shared?
-- column policy: The policy stack.
-- column recording: The recorded model and grade.
-- column request_id: A recorded request.
-- column other_request_id: Another one with the same beginning.
-- column unit_tokens: Tokens that are kept or dropped as one.
-- column prefix_tokens: Tokens in common at the beginning, in whole units.
-- column kept_ratio: Share of the prefix that the first request keeps, over all layers and KV heads.
-- column other_kept_ratio: Share of it that the other request keeps.
-- column common_ratio: Tokens that both keep over those that the first keeps.
-- column jaccard_ratio: Tokens that both keep over those that one of them keeps.
-- column same_pages_ratio: Pages of which both keep the same tokens, over the pages that one of them touches.
-- column stays_shareable: Whether blocks of the prefix stay shareable as they are.
SELECT
  policy, recording, request_id, other_request_id, unit_tokens, max(prefix_tokens) AS prefix_tokens,
  CAST(sum(CAST(kept_tokens AS BIGINT)) AS DOUBLE) / nullif(sum(CAST(prefix_tokens AS BIGINT)), 0) AS kept_ratio,
  CAST(sum(CAST(other_kept_tokens AS BIGINT)) AS DOUBLE) / nullif(sum(CAST(prefix_tokens AS BIGINT)), 0)
    AS other_kept_ratio,
  CAST(sum(CAST(common_tokens AS BIGINT)) AS DOUBLE) / nullif(sum(CAST(kept_tokens AS BIGINT)), 0) AS common_ratio,
  CAST(sum(CAST(common_tokens AS BIGINT)) AS DOUBLE)
    / nullif(sum(CAST(kept_tokens AS BIGINT) + CAST(other_kept_tokens AS BIGINT) - CAST(common_tokens AS BIGINT)), 0)
    AS jaccard_ratio,
  CAST(sum(CAST(same_pages AS BIGINT)) AS DOUBLE) / nullif(sum(CAST(touched_pages AS BIGINT)), 0) AS same_pages_ratio,
  bool_and(stays_shareable) AS stays_shareable
FROM kept_overlap
GROUP BY policy, recording, request_id, other_request_id, unit_tokens
ORDER BY policy, recording, request_id, other_request_id, unit_tokens
