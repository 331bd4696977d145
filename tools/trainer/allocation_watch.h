// Counts heap and mapped blocks that outlive the step that made them, once training has started.
// The program's malloc and mmap are interposed; in sanitizer builds, which bring their own, nothing
// is counted and `available()` is false.
#pragma once

#include <cstdint>

namespace snug::allocation_watch {

bool available();
void start();      // from here on blocks are watched
void step_done();  // a block made before this call and after the previous one, still alive, is a
                   // breach
void stop();
int64_t breaches();   // blocks that outlived their step
int64_t transient();  // blocks made and freed within a step

}  // namespace snug::allocation_watch
