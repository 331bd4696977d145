// Checkpoints that ranks write in pieces: from any number of them, at any stage, to any other, every weight
// and every state has its bits again; put together they are the file of one rank; a rank that is gone
// leaves no whole checkpoint.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/io/files.h"
#include "engine/io/safetensors_pieces.h"
#include "layers/models/family.h"
#include "layers/models/weights.h"
#include "parallel/rank_comm.h"
#include "tests/engine/io/temp_folder.h"
#include "tests/parallel/ranks.h"
#include "tests/tools/session_case.h"
#include "tools/checkpoint/checkpoint_writer.h"
#include "tools/trainer/run_ranks.h"

namespace {

std::atomic<int> slow_disk{0};  // milliseconds that it takes to make a file durable

}  // namespace

// In place of the system's.
extern "C" int fsync(int fd) {
  if (const int ms = slow_disk; ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace snug {
namespace {

struct Case {
  const char* model;
  const char* precision = "fp32";
  const char* optim = "adamw";
  bool master = true;
};

constexpr const char* kGpt2 =
    R"({"type": "gpt2", "vocab_size": 97, "n_positions": 16, "n_embd": 36, "n_layer": 2, "n_head": 3,
        "n_inner": 76})";
constexpr const char* kLlama =
    R"({"type": "llama", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 16, "tie_word_embeddings": false})";
constexpr const char* kNeox =
    R"({"type": "gpt_neox", "vocab_size": 90, "hidden_size": 40, "intermediate_size": 72,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16})";

uint64_t key(int64_t a, int64_t b, int64_t c) {
  return mix64(mix64(static_cast<uint64_t>(a) * 1000003u + static_cast<uint64_t>(b)) +
               static_cast<uint64_t>(c));
}

// What a rank keeps, set to what its place of the whole says, or held against it.
class Places {
 public:
  Places(Session& s, bool set) : s_(s), set_(set) {}
  int64_t differ = 0, seen = 0;

  void weights() {
    const ParamTable& table = s_.model().params();
    const RestingWeights resting = s_.resting();
    for (int i = 0; i < table.size(); ++i)
      resting.each(table[i].offset, table[i].real_elements(),
                   [&](const RestingWeights::Piece& piece, int64_t first, const View& at) {
                     for (int64_t k = 0; piece.own && k < at.elements(); ++k) {
                       const uint64_t bits = key(-1, i, first - table[i].offset + k);
                       const float v = uniform_from(static_cast<uint32_t>(bits)) - 0.5f;
                       if (at.dtype == DType::bf16)
                         hold(at.as<bf16>()[k], from_f32<bf16>(v));
                       else
                         hold(at.as<float>()[k], v);
                     }
                   });
  }

  void states() {
    const ParamTable& table = s_.model().params();
    StateStore& store = s_.optimizer_state();
    for (int k = 0; k < store.states(); ++k)
      for (const StateSpan& span : whole_parameter_spans(table)) {
        const RestForm form = store.form(k, span);
        const int64_t each = form.coded() ? 8 / form.bits : 1;
        const int64_t all = form.coded() ? form.value_bytes(span.elements) : span.elements;
        for (int64_t done = 0; done < all;) {
          const int64_t first = span.offset + done * each;
          const View v = store.stored(k, first);
          const int64_t n = std::min(v.elements(), all - done);
          if (store.keeps(first)) bytes(v.rows(0, n), key(k, span.param, 0), done);
          if (store.keeps(first) && form.coded())
            bytes(store.stored_scales(k, first).rows(0, form.scales(n * each)),
                  key(k, span.param, 1), done * each / form.block);
          done += n;
        }
      }
  }

 private:
  template <class T>
  void hold(T& at, T v) {
    ++seen;
    if (set_)
      at = v;
    else
      differ += std::memcmp(&at, &v, sizeof(T)) != 0;
  }
  void bytes(const View& at, uint64_t what, int64_t first) {
    auto* const to = static_cast<uint8_t*>(at.data);
    for (int64_t b = 0; b < at.bytes(); ++b)
      hold(to[b], static_cast<uint8_t>(
                      mix64(what + static_cast<uint64_t>(first * size_of(at.dtype) + b))));
  }

  Session& s_;
  bool set_;
};

RunPosition position() {
  RunPosition at;
  at.step = at.updates = 3;
  at.samples = 6 * at.step;
  at.watch.seen = at.step;
  return at;
}

Pinned pinned() {
  Pinned p;
  p.global_batch = 6;
  p.T = 12;
  p.decisions.micro_batch = 1;
  p.decisions.head_rows = 16;
  p.threads = 1;
  return p;
}

void on_sessions(const Case& c, int ranks, int zero,
                 const std::function<void(Session&, Group&)>& f) {
  Precision precision = parse_precision(c.precision);
  if (!c.master) precision.master = precision.compute;
  const Model model(resolve_model("", c.model).spec, precision, {}, {}, ranks);
  test::RunOptions o;
  o.decisions.T = 12;
  o.decisions.micro_batch = 1;
  o.decisions.head_rows = 16;
  o.decisions.ranks = ranks;
  o.decisions.zero = zero;
  o.decisions.save = true;
  o.decisions.save_ring = SaveRing::kLeastBytes;  // small: pieces are cut
  o.optimizer.name = c.optim;
  const Schedule schedule = test::plan_schedule(model, o, {.seconds = 0});
  test::on_ranks(ranks, [&](int, Group& group) {
    const auto transport = group.transport();
    RankComm comm(*transport);
    Session s(Place::cpu, model, o.decisions, o.optimizer, o.settings, &schedule,
              ranks > 1 ? &comm : nullptr);
    s.open();
    f(s, group);
    group.barrier("done");
  });
}

std::optional<WriterRank> writer_rank(int zero, Group& group) {
  if (zero == 0) return std::nullopt;
  return WriterRank{group.rank(), group.size(), [&group] { group.barrier("folder"); }, [] {},
                    [](int, double) { return std::string(); }};
}

void save(const Case& c, int ranks, int zero, const std::string& run) {
  on_sessions(c, ranks, zero, [&](Session& s, Group& group) {
    Places places(s, true);
    places.weights();
    places.states();
    group.barrier("set");
    if (zero == 0 && group.rank() > 0) return;
    CheckpointWriter writer(s, run, 0, true, writer_rank(zero, group));
    writer.begin(position(), pinned(), {}, [](const std::string&) {});
    const auto saved = writer.wait();
    if (group.rank() > 0) return;
    int64_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(saved.value().folder))
      if (file.path().extension() == ".safetensors")
        bytes += static_cast<int64_t>(file.file_size());
    EXPECT_EQ(saved->bytes, bytes);
  });
}

void check(const Case& c, const std::vector<int>& sizes) {
  const TempFolder tmp;
  struct Form {
    int ranks, zero;
  };
  std::vector<Form> forms;
  for (const int ranks : sizes)
    for (int zero = 0; zero <= (ranks > 1 ? 3 : 0); ++zero) forms.push_back({ranks, zero});
  std::string whole;
  for (const Form& from : forms) {
    SCOPED_TRACE(std::string(c.model).substr(0, 20) + " saved by " + std::to_string(from.ranks) +
                 " at stage " + std::to_string(from.zero));
    const std::string run = tmp / (std::to_string(from.ranks) + "-" + std::to_string(from.zero));
    std::filesystem::create_directory(run);
    save(c, from.ranks, from.zero, run);
    const std::string folder = run + "/checkpoint-3";
    ASSERT_TRUE(checkpoint_complete(folder));
    EXPECT_EQ(safetensors_in_pieces(folder + "/model.safetensors"), from.zero > 0);
    if (whole.empty()) whole = folder;
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors"}) {
      const SafetensorsReader a(whole + name), b(folder + name);
      ASSERT_EQ(a.tensors().size(), b.tensors().size());
      for (const SafeTensor& t : a.tensors()) {
        const SafeTensor& other = b.at(t.name);
        EXPECT_EQ(t.shape, other.shape);
        ASSERT_EQ(t.bytes, other.bytes);
        EXPECT_EQ(std::memcmp(t.data, other.data, static_cast<size_t>(t.bytes)), 0) << t.name;
      }
    }
    const Checkpoint checkpoint = read_checkpoint(folder);
    for (const Form& to : forms) {
      std::atomic<int64_t> differ{0}, seen{0};
      on_sessions(c, to.ranks, to.zero, [&](Session& s, Group&) {
        load_checkpoint(s, checkpoint);
        Places places(s, false);
        places.weights();
        places.states();
        differ += places.differ;
        seen += places.seen;
      });
      EXPECT_EQ(differ, 0) << "to " << to.ranks << " at stage " << to.zero;
      EXPECT_GT(seen, 0);
    }
  }
}

TEST(RankCheckpoints, AnyNumberOfRanksReadsThoseOfAnyOther) {
  check({kGpt2}, {1, 2, 3});
  check({kLlama, "bf16", "adamw_8bit"}, {1, 3});
  check({kNeox, "bf16", "adamw", false}, {1, 2});
}

TEST(SlowRankCheckpoints, AllPairsOfFourAndAllStages) {
  check({kGpt2, "bf16"}, {1, 2, 3, 4});
  check({kLlama, "fp32", "adamw_8bit"}, {1, 2, 3, 4});
  check({kNeox, "fp16"}, {1, 2, 3, 4});
}

// Rank 1 never writes: rank 0 gives up as soon as it knows, and what is there is torn.
TEST(RankCheckpoints, WithoutARankThereIsNone) {
  const TempFolder run;
  on_sessions({kGpt2}, 2, 2, [&](Session& s, Group& group) {
    Places(s, true).weights();
    if (group.rank() > 0) return;
    std::atomic<bool> gone{false};
    CheckpointWriter writer(
        s, run.path(), 0, true,
        WriterRank{
            0, 2, [] {}, [] {},
            [&](int, double) { return std::string(gone ? "rank 1: its process 7 is gone" : ""); }});
    writer.begin(position(), pinned(), {}, [](const std::string&) {});
    EXPECT_FALSE(writer.poll());
    gone = true;
    try {
      writer.wait();
      ADD_FAILURE() << "a checkpoint of one rank of two";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device);
      EXPECT_NE(std::string(error.what()).find("rank-1.sealed, which rank 1 writes"),
                std::string::npos)
          << error.what();
    }
    // One whose end nobody waits for does not hold its end up either.
    writer.begin(position(), pinned(), {}, [](const std::string&) {});
  });
  EXPECT_FALSE(checkpoint_complete(run / "checkpoint-3"));
  EXPECT_FALSE(checkpoint_complete(run / "checkpoint-3.tmp"));
}

// Rank 2 stands still behind the meeting: the others wait as long as the time-out says, and name it; rank 1,
// which needs longer than that and goes on, is waited for.
TEST(RankCheckpoints, ARankThatStandsStillIsNamed) {
  const TempFolder run;
  const auto signs = LocalGroup::of_threads(3);  // not those of the run, which comes to its end
  signs[0]->set_timeout(0.6);
  on_sessions({kGpt2}, 3, 2, [&](Session& s, Group& group) {
    if (group.rank() == 2) return group.barrier("folder");
    Group& own = *signs[static_cast<size_t>(group.rank())];
    std::atomic<int> pieces{0};
    const auto go_on = [&] {
      own.go_on();
      if (group.rank() == 1 && ++pieces <= 8)
        std::this_thread::sleep_for(std::chrono::milliseconds(250));
    };
    CheckpointWriter writer(s, run.path(), 0, true,
                            WriterRank{group.rank(), 3, [&] { group.barrier("folder"); }, go_on,
                                       [&](int rank, double began) {
                                         own.look_after(rank, "its part", began);
                                         return own.reason();
                                       }});
    writer.begin(position(), pinned(), {}, [](const std::string&) {});
    try {
      writer.wait();
      EXPECT_EQ(group.rank(), 1);
      EXPECT_GT(pieces, 8);
    } catch (const Error& error) {
      EXPECT_EQ(group.rank(), 0);
      const std::string text = error.what();
      EXPECT_NE(text.find("rank-2.sealed, which rank 2 writes"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 2: it did not go on with its part within 1 s"), std::string::npos)
          << text;
      EXPECT_NE(text.find("the run anew"), std::string::npos) << text;
      EXPECT_NE(text.find("a longer ddp_timeout"), std::string::npos) << text;
    }
  });
  EXPECT_FALSE(checkpoint_complete(run / "checkpoint-3"));
  EXPECT_EQ(signs[0]->who_gave_up(), 2);
}

// A disk that needs longer than the time-out to make a rank's file durable is waited for: that is one step, and
// the rank says meanwhile that it goes on.
TEST(RankCheckpoints, ADiskThatIsSlowIsWaitedFor) {
  const TempFolder run;
  const auto signs = LocalGroup::of_threads(2);
  signs[0]->set_timeout(0.6);
  on_sessions({kGpt2}, 2, 2, [&](Session& s, Group& group) {
    Group& own = *signs[static_cast<size_t>(group.rank())];
    const auto meet = [&] {
      group.barrier("folder");
      slow_disk = 1200;
    };
    CheckpointWriter writer(s, run.path(), 0, true,
                            WriterRank{group.rank(), 2, meet, [&] { own.go_on(); },
                                       [&](int rank, double began) {
                                         own.look_after(rank, "its part", began);
                                         return own.reason();
                                       }});
    writer.begin(position(), pinned(), {}, [](const std::string&) {});
    writer.wait();
    slow_disk = 0;
  });
  EXPECT_TRUE(checkpoint_complete(run / "checkpoint-3"));
  EXPECT_EQ(signs[0]->who_gave_up(), -1);
}

// What a disk says of a rank's lines is told as it says it, and what to go on from is there.
TEST(RankCheckpoints, LinesThatCannotBeReadAreTold) {
  const TempFolder run;
  on_sessions({kGpt2}, 2, 2, [&](Session& s, Group& group) {
    if (group.rank() > 0) return;
    CheckpointWriter writer(
        s, run.path(), 0, true,
        WriterRank{0, 2, [] {}, [] {},
                   [](int, double) { return std::string("it is never asked for"); }});
    const auto error_of = [&](const std::function<void(const std::string&)>& extra) {
      try {
        writer.begin(position(), pinned(), {}, extra);
        writer.wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device);
        return std::string(error.what());
      }
      return std::string("none");
    };
    const std::string loop = error_of([](const std::string& folder) {
      std::filesystem::create_symlink("rank-1.sealed", folder + "/rank-1.sealed");
    });
    EXPECT_NE(loop.find("found: Too many levels of symbolic links"), std::string::npos) << loop;
    EXPECT_EQ(loop.find("resume=latest"), std::string::npos) << loop;
    EXPECT_NE(loop.find("the health of that disk"), std::string::npos) << loop;
    std::filesystem::create_directory(run / "checkpoint-2");
    write_atomic(run / "checkpoint-2/COMPLETE", "snug checkpoint 4\n");
    const std::string folder = error_of(
        [](const std::string& of) { std::filesystem::create_directory(of + "/rank-1.sealed"); });
    EXPECT_NE(folder.find("found: Is a directory"), std::string::npos) << folder;
    EXPECT_NE(folder.find("resume=latest, from the checkpoint before"), std::string::npos)
        << folder;
  });
}

// Who goes on is waited for beyond the time-out; who gave up is not.
TEST(RankCheckpoints, WhoIsAliveIsWaitedFor) {
  test::on_ranks(
      2,
      [](int rank, LocalGroup& group) {
        if (rank == 1) {
          EXPECT_NO_THROW(group.barrier("the tokens"));
          return group.give_up("the disk is full");
        }
        {
          const RunRanks::Alive alive(group);
          std::this_thread::sleep_for(std::chrono::seconds(3));
        }
        group.barrier("the tokens");
        EXPECT_THROW(group.barrier("the data"), Error);
      },
      2);
}

// final/ is put together of the ranks' pieces, in either dtype, a few rows at a time.
TEST(RankCheckpoints, TheModelIsPutTogetherOfPieces) {
  const TempFolder one, many;
  std::vector<std::string> bytes;
  for (const int zero : {0, 1, 3}) {
    on_sessions({kGpt2, "bf16"}, zero > 0 ? 3 : 1, zero, [&](Session& s, Group& group) {
      Places(s, true).weights();
      group.barrier("set");
      CheckpointWriter writer(s, many.path(), 0, true, writer_rank(zero, group));
      if (zero > 0) writer.write_weights(many.path());
      group.barrier("written");
      if (group.rank() > 0) return;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const std::string file = one / "model.safetensors";
        s.save_model(file, weights_layout(s.model(), dtype),
                     zero > 0 ? many / "model.safetensors" : std::string());
        bytes.push_back(read_file(file));
      }
      if (zero > 0) writer.remove_pieces(many.path());
      EXPECT_EQ(many.count(), 0);
    });
  }
  ASSERT_EQ(bytes.size(), 6u);
  for (size_t i = 2; i < bytes.size(); ++i) EXPECT_TRUE(bytes[i] == bytes[i % 2]) << i;
}

}  // namespace
}  // namespace snug
