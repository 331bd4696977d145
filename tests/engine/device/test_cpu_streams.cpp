// What events promise, in every mode of the place cpu: work happens after what it waits for, before
// what waits for it, and (deferred) not a moment earlier than it must.
#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

std::unique_ptr<Device> started(StreamMode mode) {
  auto device = make_device(Place::cpu);
  device->start_streams(mode);
  return device;
}

TEST(Streams, HaveNames) {
  EXPECT_STREQ(stream_name(kCompute), "compute");
  EXPECT_STREQ(stream_name(kToHost), "to_host");
  EXPECT_STREQ(stream_name(kToDevice), "to_device");
  EXPECT_STREQ(stream_name(kRanks), "ranks");
  EXPECT_STREQ(stream_name(9), "?");
  EXPECT_STREQ(to_string(StreamMode::immediate), "immediate");
  EXPECT_STREQ(to_string(StreamMode::deferred), "deferred");
  EXPECT_STREQ(to_string(StreamMode::worker), "worker");
}

TEST(Streams, ImmediateWorkIsDoneWhenItIsIssued) {
  const auto device = started(StreamMode::immediate);
  int a = 1, b = 0;
  for (const StreamId s : {kCompute, kToHost, kToDevice}) {
    a += 5;
    device->copy(&b, &a, sizeof(a), s);
    EXPECT_EQ(b, a);
    device->wait_event(kCompute, device->record_event(s));
  }
  device->synchronize();
}

// A call has its place among the copies that it waits for, and those that wait for it.
TEST(Streams, CallsHaveTheirPlace) {
  for (const StreamMode mode : {StreamMode::immediate, StreamMode::deferred, StreamMode::worker}) {
    SCOPED_TRACE(to_string(mode));
    const auto device = started(mode);
    struct Seen {
      int value = 1;
      std::vector<int> list;
    } seen;
    const auto call = [&](int64_t number) {
      device->call(
          [](void* of, int64_t n) {
            auto& s = *static_cast<Seen*>(of);
            s.list.push_back(s.value);
            s.value += static_cast<int>(n);
          },
          &seen, number, kRanks);
    };
    int ten = 10, out = 0;
    device->copy(&seen.value, &ten, sizeof ten, kToDevice);
    device->wait_event(kRanks, device->record_event(kToDevice));
    call(5);
    const EventId first = device->record_event(kRanks);
    call(7);
    EXPECT_EQ(seen.list.size(), mode == StreamMode::deferred ? 0u : 2u);
    device->wait_event(kToHost, first);
    device->wait_event(kCompute, first);
    if (mode == StreamMode::deferred) {
      EXPECT_EQ(seen.list, (std::vector<int>{10}));
    }
    device->wait_event(kToHost, device->record_event(kRanks));
    device->copy(&out, &seen.value, sizeof out, kToHost);
    device->wait_event(kCompute, device->record_event(kToHost));
    EXPECT_EQ(seen.list, (std::vector<int>{10, 15}));
    EXPECT_EQ(out, 22);
  }
}

TEST(Streams, DeferredWorkIsDoneWhenItIsWaitedFor) {
  const auto device = started(StreamMode::deferred);
  int a = 1, b = 0, c = 0, d = 0;
  device->copy(&b, &a, sizeof(a), kToHost);
  const EventId first = device->record_event(kToHost);
  device->copy(&c, &a, sizeof(a), kToHost);
  const EventId second = device->record_event(kToHost);
  device->copy(&d, &a, sizeof(a), kCompute);
  EXPECT_EQ(d, 1) << "compute is never late";
  EXPECT_EQ(b, 0);
  a = 2;
  device->wait_event(kCompute, device->record_event(kCompute));
  EXPECT_EQ(b, 0) << "an event of compute says nothing of copies";
  device->wait_event(kCompute, first);
  EXPECT_EQ(b, 2) << "the copy read its source when it had to, and no earlier";
  EXPECT_EQ(c, 0) << "what is behind the event stays";
  a = 3;
  device->wait_event(kCompute, first);
  EXPECT_EQ(b, 2) << "once";
  device->fill(&b, 0, sizeof(b), kToDevice);
  EXPECT_EQ(b, 2);
  device->synchronize();
  EXPECT_EQ(c, 3);
  EXPECT_EQ(b, 0);
  a = 4;
  device->wait_event(kCompute, second);
  EXPECT_EQ(c, 3);
}

// to_device waits for an event of to_host: waiting for to_device runs both, in order, and of
// to_host no more than it must.
TEST(Streams, DeferredStreamsWaitForEachOther) {
  const auto device = started(StreamMode::deferred);
  int a = 7, host = 0, back = 0, other = 0;
  device->copy(&host, &a, sizeof(a), kToHost);
  const EventId out = device->record_event(kToHost);
  device->copy(&other, &a, sizeof(a), kToHost);
  device->wait_event(kToDevice, out);
  device->copy(&back, &host, sizeof(a), kToDevice);
  const EventId in = device->record_event(kToDevice);
  EXPECT_EQ(host, 0);
  device->wait_event(kCompute, in);
  EXPECT_EQ(host, 7);
  EXPECT_EQ(back, 7);
  EXPECT_EQ(other, 0);
  // Without the wait the copy back would have read what was there before.
  back = 0, host = 1;
  device->copy(&host, &a, sizeof(a), kToHost);
  device->copy(&back, &host, sizeof(a), kToDevice);
  device->wait_event(kCompute, device->record_event(kToDevice));
  EXPECT_EQ(back, 1);
}

TEST(Streams, FullQueuesLoseNothing) {
  for (const StreamMode mode : {StreamMode::deferred, StreamMode::worker}) {
    const auto device = started(mode);
    std::vector<int> from(5000), to(5000);
    for (int i = 0; i < 5000; ++i) {
      from[static_cast<size_t>(i)] = i + 1;
      device->copy(&to[static_cast<size_t>(i)], &from[static_cast<size_t>(i)], sizeof(int),
                   i % 2 ? kToHost : kToDevice);
    }
    device->synchronize();
    EXPECT_EQ(to, from) << to_string(mode);
  }
}

TEST(Streams, Misuse) {
  const auto device = started(StreamMode::deferred);
  int a = 0, b = 0;
  expect_error(ErrorCode::internal, {"streams to be started once"},
               [&] { device->start_streams(StreamMode::worker); });
  expect_error(ErrorCode::internal, {"a stream of the device"},
               [&] { device->copy(&a, &b, sizeof(a), kStreams); });
  expect_error(ErrorCode::internal, {"a stream of the device"}, [&] { device->record_event(-1); });
}

// The thread: a ring of buffers goes out and comes back, each reused as soon as its copy is waited
// for, while compute writes the next ones. A missing order is a race that ThreadSanitizer sees, and
// a wrong number.
TEST(StreamThreads, BuffersGoOutAndComeBack) {
  const auto device = started(StreamMode::worker);
  constexpr size_t kBytes = 100000;
  constexpr int kLayers = 40;
  std::vector<std::vector<uint8_t>> stage(2, std::vector<uint8_t>(kBytes)),
      host(kLayers, std::vector<uint8_t>(kBytes));
  EventId sent[2] = {};
  for (int round = 0; round < 3; ++round) {
    for (int l = 0; l < kLayers; ++l) {
      auto& buffer = stage[static_cast<size_t>(l % 2)];
      if (l >= 2) device->wait_event(kCompute, sent[l % 2]);
      std::fill(buffer.begin(), buffer.end(), static_cast<uint8_t>(l + round));
      device->wait_event(kToHost, device->record_event(kCompute));
      device->copy(host[static_cast<size_t>(l)].data(), buffer.data(), kBytes, kToHost);
      sent[l % 2] = device->record_event(kToHost);
    }
    for (const EventId e : sent) device->wait_event(kCompute, e);
    for (int l = kLayers - 1; l >= 0; --l) {
      auto& buffer = stage[static_cast<size_t>(l % 2)];
      device->wait_event(kToDevice, device->record_event(kCompute));
      device->copy(buffer.data(), host[static_cast<size_t>(l)].data(), kBytes, kToDevice);
      device->wait_event(kCompute, device->record_event(kToDevice));
      for (const size_t at : {size_t{0}, kBytes / 2, kBytes - 1})
        ASSERT_EQ(buffer[at], static_cast<uint8_t>(l + round));
    }
  }
}

TEST(StreamThreads, WhatWasIssuedIsDoneBeforeTheDeviceEnds) {
  std::vector<uint8_t> from(1 << 20, 3), to(1 << 20, 0);
  {
    const auto device = started(StreamMode::worker);
    for (int i = 0; i < 16; ++i)
      device->copy(to.data() + (i << 16), from.data() + (i << 16), 1 << 16, kToHost);
  }
  EXPECT_EQ(to, from);
  { const auto idle = started(StreamMode::worker); }
}

// A stack that no address space has: the system gives no thread.
TEST(Streams, AThreadThatIsRefused) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto device = make_device(Place::cpu);
  test::expect_error(
      ErrorCode::device,
      {"a thread that copies between the device's memory and the host's", "ulimit -u"},
      [&] { device->start_streams(StreamMode::worker); });
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal)
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
}

}  // namespace
}  // namespace snug
