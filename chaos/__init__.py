"""Faults and trials against any training runtime. Knows `phoenix_core`'s events, never its insides.

Values (pure, with JSON forms)
    kinds       FaultKind (registry FAULT_KINDS), Scope, Fidelity
    faults      Target, Trigger, PlannedFault, Injection
    triggers, expansion, mixes   when: Trigger; plans of many faults written out; what broke in a published run
    scenario    Scenario, Cluster, load_scenario / parse_scenario / Scenario.from_json, scenario_schema, fault_schema
    workloads   Workload (registry WORKLOADS): what a scenario may name instead of a command
    verdict     Verdict (PASS | FAIL | UNKNOWN), CheckResult
    recoveries  RecoveryRecord, recovery_records(events): the one JSON shape of a recovery
    errors      ChaosError and its kin: InvalidFault, UnknownFaultKind, InvalidScenario, TargetGone, TrialError ...
Decisions (pure)
    schedule    which planned faults are due, given the events so far and the time
    roster      which process is which worker and rank, from events
    evidence    what the checks may look at
    underway    which phase a recovery is in, event by event
    foresight   whom a fault would hit now
    checks, attribution, data_once, twin   one function each; twin compares with the undisturbed run
    suite, summary, goodput   a list of trials; what came of it, as JSON, Markdown and JUnit
    requests    the lines of requests.jsonl as values
    schema, located   a document against its JSON Schema, with field and line of each mistake
    failures    why a job failed, with the last lines of the log that tells
    compare/    whether one code recovers slower than another: samples, the rule, histories (with numpy, scipy)
    reading     the names of phoenix_core's events and timelines, for those above chaos
Effects
    record      TrialDirectory: spec.json, requests.jsonl, run/, twin/, pid, result.json; Spec, Result
    trial       run_trial(directory) -> Result; `python -m chaos.trial run DIR`
    nightly, undisturbed   all trials of a suite into one directory; undisturbed runs that serve several
    traces      files with times of faults
    injectors/  one small protocol; process.py kills and freezes, network.py parts, slows and resets
    cluster/    isolated nodes: built as network namespaces, parted and healed by a process inside of them (the hand)
    files       whether the files that a scenario names can be trained on
    runtimes    adapters: the command line, environment and event directory of a runtime under test
    conductor   the loop of one launch: reads events, applies what is due, reverts what lasts, ends it in time
    launch, warden    keep one launch of a runtime: ends all of it, also when the trial is killed
    watch       reads event files as they grow, within a millisecond
    leaks, procfs, provenance   what is left over, what /proc tells, which code ran where
    collect, revisions   the samples of finished trials, and what the two names of a comparison mean
    arms, interleaved    two commits in worktrees with their environments, and their trials in turns
    git         questions to git
"""
