-- NEXMark q22.  Folders of URLs.
SELECT auction, bidder, price, channel,
  split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, split(url, '/')[5] AS dir3
FROM bid
