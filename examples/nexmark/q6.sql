-- NEXMark q6.  Average price of a seller's last ten auctions.  Refused: the winning bid of an auction changes with
-- every bid, and the average would count each change.  (Flink refuses it for the same reason.)
SELECT Q.seller, avg(Q.final) OVER (
  PARTITION BY Q.seller ORDER BY Q.dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
) AS average
FROM (
  SELECT * FROM (
    SELECT A.seller, B.price AS final, B.dateTime,
      row_number() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
    FROM auction AS A, bid AS B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  ) WHERE rownum <= 1
) AS Q
