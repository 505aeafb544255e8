-- Which machines were used, and where does each of their parameters come from?
-- column machine: The machine with its variations.
-- column parameter: The parameter.
-- column value: Its value in the unit.
-- column unit: The unit.
-- column certainty: How well it is known.
-- column source: Where it comes from.
SELECT machine, parameter, value, unit, certainty, source FROM machines
ORDER BY machine, parameter
