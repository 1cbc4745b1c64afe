"""The views that there are, for tests that hold for each of them."""

VIEWS = (
    "/",
    "/runs",
    "/runs/r3",
    "/trials/t-r1",
    "/history",
    "/history?scenario=stop-one&view=phases",
    "/heatmap",
    "/compare",
    "/compare?base=aaaaaaaaaaaa&head=bbbbbbbbbbbb",
    "/regressions?show=all",
    "/peers",
    "/faults",
    "/schedules",
    "/machines",
    "/settings",
    "/login",
)
