-- NEXMark q4.  Average price of a category.  The highest bid of an auction changes with every bid, so the average
-- is that of the changes: each auction counts once, with what its highest bid has grown by.
SELECT category, sum(final - coalesce(before, 0)) / count_if(before IS NULL) AS average
FROM (
  SELECT category, final, lag(final) OVER (PARTITION BY id ORDER BY dateTime) AS before
  FROM (
    SELECT A.id, A.category, B.dateTime, max(B.price) OVER (PARTITION BY A.id ORDER BY B.dateTime) AS final
    FROM auction AS A, bid AS B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  )
)
GROUP BY category
