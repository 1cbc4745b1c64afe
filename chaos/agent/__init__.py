"""Makes faults inside of a training process, at the trial's order: `python -m chaos.agent [-m MODULE | SCRIPT] ARGS`.

The script runs as if it had been started by itself; beside it a thread waits for orders (`mailbox` says how they come).
So a fault in the process needs no hook in the runtime under test, and works for any of them.

    mailbox     where orders lie, and how both sides take them: at most one of the two ever has an order
    listener    the thread, and the life of one order: claimed, carried out, answered
    running     the main thread and the places of a step, where a fault strikes
    native      stays in C code for a time, with the GIL or without
    acts, collectives, numbers   what can be ordered
"""
