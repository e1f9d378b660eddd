-- The rules of docs/howto/segments.md over a table `events` (id, time, event, value) in Spark SQL, at 2026-11-21:
-- the rows (id, segment) that `capline segments build` takes. `time` is a TIMESTAMP, and the session's zone is UTC.
WITH known AS (
  SELECT *, TIMESTAMP '2026-11-21 00:00:00' AS asked FROM events WHERE time <= TIMESTAMP '2026-11-21 00:00:00'
),
users AS (
  SELECT
    id,
    min(time) FILTER (WHERE event = 'signup') > max(asked) - INTERVAL 30 DAYS
      AND count(*) FILTER (WHERE event = 'ride') = 0 AS is_new,
    count(*) FILTER (WHERE event = 'ride' AND time > asked - INTERVAL 30 DAYS) >= 1 AS is_active,
    max(time) FILTER (WHERE event = 'ride') <= max(asked) - INTERVAL 90 DAYS AS is_lapsed,
    sum(CAST(value AS DECIMAL(15, 4))) FILTER (WHERE event = 'order' AND time > asked - INTERVAL 90 DAYS) >= 100 AS is_big
  FROM known
  GROUP BY id
),
rows_of AS (
  SELECT
    id,
    CASE WHEN is_new THEN 'new' WHEN is_active THEN 'active' WHEN is_lapsed THEN 'lapsed' WHEN is_big THEN 'big' END AS segment
  FROM users
)
SELECT id, segment FROM rows_of WHERE segment IS NOT NULL
