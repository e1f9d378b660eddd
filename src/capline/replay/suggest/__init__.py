"""Suggestions: from past events to limits, with the exact price of each.

histories    the events of each subject, and what each window of it holds
refusals     refused events under many quotas at once
suggestion   curves over all quotas, and the smallest that keep within a bound, alone and together
facts        a suggestion as plain values
policy_file  the policy to begin with, and its forecast
report       all of it as one HTML page
"""
