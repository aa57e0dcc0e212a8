-- NEXMark q10.  Log to files: bids with the day and minute that a partitioned sink would use.
SELECT auction, bidder, price, dateTime, extra,
  date_format(dateTime, 'yyyy-MM-dd') AS day, date_format(dateTime, 'HH:mm') AS minute
FROM bid
