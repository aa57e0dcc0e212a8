-- NEXMark q19.  The ten highest bids of every auction; the rank is that of the moment at which the bid came.
SELECT *
FROM (
  SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
  FROM bid
)
WHERE rank_number <= 10
