"""A driver among others: it takes the state or waits for it, is started again together with its servers, and tells
where its run stands still.
"""
