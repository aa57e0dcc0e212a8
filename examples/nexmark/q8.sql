-- NEXMark q8.  Monitor new users: who opened an auction in the ten seconds after they came?
SELECT P.id, P.name, P.starttime
FROM (
  SELECT id, name, window.start AS starttime, window.end AS endtime
  FROM person
  GROUP BY id, name, window(dateTime, '10 seconds')
) AS P
JOIN (
  SELECT seller, window.start AS starttime, window.end AS endtime
  FROM auction
  GROUP BY seller, window(dateTime, '10 seconds')
) AS A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
