"""capline below other packages, by their own interfaces: each module needs the package that it is named after.

capline.contrib.limits    a storage for `limits`, so for flask-limiter and slowapi
"""
