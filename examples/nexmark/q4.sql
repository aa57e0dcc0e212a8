-- NEXMark q4.  Average price of a category.  Refused: the highest bid of an auction changes with every bid,
-- and the average would count each change.
SELECT Q.category, avg(Q.final) AS average
FROM (
  SELECT max(B.price) AS final, A.category
  FROM auction AS A, bid AS B
  WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
  GROUP BY A.id, A.category
) AS Q
GROUP BY Q.category
