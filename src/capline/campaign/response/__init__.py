"""Response: what came back after messages, from the outcomes of campaigns and the events that followed.

messages    the outcomes of campaigns as columns; `Timeline` finds a recipient's messages before an instant
replies     events, joined with them by key, or by recipient and time within the attribution window
intervals   shares and differences, each with its interval
measure     by campaign, segment and number in the window, against the holdout; who took the place of the refused
page        all of it as one HTML page
opt_outs    who unsubscribed, added to the file that campaigns exclude
"""
