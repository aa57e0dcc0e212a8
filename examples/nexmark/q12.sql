-- NEXMark q12.  Windows of processing time: how many bids does a user make in ten seconds?  Refused: results would
-- depend on when rows are processed, and the same input would have other answers.
SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime
FROM bid
GROUP BY bidder, window(current_timestamp(), '10 seconds')
