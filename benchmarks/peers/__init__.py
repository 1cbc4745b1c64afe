"""Other runtimes beside PHOENIX: the same model, data, ranks, seeds and faults, each in its own environment.

    contenders     who is compared, in which settings, what each cannot do, and how it is started
    environments   a virtual environment for each peer, made once from a pinned list and kept
    crew           starts the processes of a peer that brings no launcher of its own for all of them
    scripts/       the training loop as each peer's documentation writes it, and the probe that writes events
    drive          one job: wait until it runs, break it, see it recover, again
    observed       what events say of a recovery, the same for every runtime. Pure
    cells          which measurements there are, and what is kept from an earlier run. Pure
    page           the table and the plot. Pure

What runs in a peer's environment (`scripts`) imports of this project only what needs nothing but torch and numpy.
"""
