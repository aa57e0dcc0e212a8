-- NEXMark q13.  Bounded side input: bids with a column from a small table.
SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
FROM bid AS B JOIN side_input AS S ON mod(B.auction, 100) = S.key
