-- NEXMark q7.  Highest bid of every ten seconds.
SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
FROM bid AS B JOIN (
  SELECT max(price) AS maxprice, window.end AS dateTime
  FROM bid
  GROUP BY window(dateTime, '10 seconds')
) AS B1 ON B.price = B1.maxprice
WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL 10 SECONDS AND B1.dateTime
