"""Programs that prove the promises of docs/explanation/reliability.md; not shipped.

proof.articles     limiters as articles publish them, on the cases that break them; writes docs/explanation/articles.md
proof.checker      decides from the callers' records whether a limiter kept its promises; knows nothing of capline
proof.mutants      limiters that are wrong on purpose, each of which the checker has to catch
                   and, as proof.mutants.of_code, mistakes in capline's own code, each of which a test has to catch
proof.concurrency  processes, tasks and threads on one key, recorded and checked
proof.model        every interleaving of a few callers, over the rule itself
proof.simulator    the server store by seeds, on a simulated clock, network and servers, and wrong engines that it finds
proof.changes      policies that change between random steps, on every store beside the reference
proof.crashes      killed writers and lost power under the embedded store
proof.flips        one bit flipped in the embedded store's file
proof.chaos        a cluster under load whose servers are killed, stopped and moved
"""
