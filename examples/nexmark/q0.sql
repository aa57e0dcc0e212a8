-- NEXMark q0.  Pass through: every bid as it is.
SELECT auction, bidder, price, dateTime, extra FROM bid
