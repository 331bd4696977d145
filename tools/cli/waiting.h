// How the threads of a computation wait for each other.
//
// GCC's OpenMP lets a thread that waits spin for some 300 000 rounds, about 3 ms, before it sleeps.
// When something else wants the core, the thread that is waited for may be the one that does not
// run, and all of those 3 ms are lost, at every loop. Measured on two cores beside one busy
// process, a training step of 0.26 s took 0.33 to 3.7 s; with 1000 rounds 0.29 to 1.3 s, and on the
// quiet machine 0.252 to 0.278 s against 0.252 to 0.267 s (table in
// tests/bench/results/threads.md).
#pragma once

namespace snug {

// Sets GOMP_SPINCOUNT=1000 unless it, OMP_WAIT_POLICY or KMP_BLOCKTIME is set, and starts the
// program anew, since the library reads it before main. Returns if there is nothing to do or it
// cannot be done.
void wait_briefly(char** argv);

}  // namespace snug
