// Which sanitizer is built in, whatever the compiler: GCC defines a macro, Clang has a feature.
#pragma once

#ifndef SNUG_ADDRESS_SANITIZER
#define SNUG_ADDRESS_SANITIZER 0
#define SNUG_THREAD_SANITIZER 0

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef SNUG_ADDRESS_SANITIZER
#define SNUG_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#undef SNUG_THREAD_SANITIZER
#define SNUG_THREAD_SANITIZER 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#undef SNUG_ADDRESS_SANITIZER
#define SNUG_ADDRESS_SANITIZER 1
#endif
#if defined(__SANITIZE_THREAD__)
#undef SNUG_THREAD_SANITIZER
#define SNUG_THREAD_SANITIZER 1
#endif
#endif  // SNUG_ADDRESS_SANITIZER
