// The one file that sees the headers of cudnn-frontend. They take the library's functions from a
// handle of dlopen that is theirs by name and ours to fill.
#include "layers/ops/attention_cudnn.h"

#ifdef SNUG_CUDNN
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#endif
#include <fmt/format.h>

#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>

#include "engine/core/error.h"
#include "engine/device/cuda_library.h"
#include "layers/ops/attention_cudnn_simt.h"

#ifdef SNUG_CUDNN
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}
#endif

namespace snug {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  fail(ErrorCode::unsupported, "cuDNN to compute attention", why,
       "let the kernel of this program do it: without the setting cudnn");
}

}  // namespace

#ifndef SNUG_CUDNN

std::string cudnn_version() {
  return "";
}
std::string describe_cudnn() {
  return "not in this build: cudnn.h or cudnn_frontend.h was not found";
}
void attention_cudnn_forward(const simt::cuda::Queue&, const View&, const View&, const View&,
                             int64_t, int64_t, const AttentionSpec&, const View&, const View&) {
  refuse(describe_cudnn());
}
void attention_cudnn_backward(const simt::cuda::Queue&, const View&, const View&, const View&,
                              const View&, const View&, int64_t, int64_t, const AttentionSpec&,
                              const View&, const View&) {
  refuse(describe_cudnn());
}
int64_t attention_cudnn_asks(const std::string&, int, DType, int64_t, int64_t, const AttentionSpec&,
                             bool) {
  refuse(describe_cudnn());
}

#else

namespace {

namespace fe = cudnn_frontend;

struct Library {
  cudnnHandle_t handle = nullptr;
  std::string path;
  std::string why, no_handle;  // not empty: why there is no library, why none that computes
};

// Used by the thread that launches alone.
Library& library() {
  static Library l = [] {
    Library made;
    std::string loader;
    fe::cudnn_dlhandle = open_cuda_library("SNUG_CUDNN", {"libcudnn.so.9"}, made.path, loader);
    if (fe::cudnn_dlhandle == nullptr)
      made.why = made.no_handle = "absent: " + loader;
    else if (fe::detail::create_handle(&made.handle) != CUDNN_STATUS_SUCCESS)
      made.no_handle = "of no use: it gives no handle";
    return made;
  }();
  return l;
}

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kQueryLengths, kKeyLengths, kDo, kDq, kDk, kDv };

struct Key {
  int64_t B, T, H, G, D;
  float scale;
  int32_t causal, padding, type, backward;
  bool operator==(const Key&) const = default;
};

struct Entry {
  Key key{};
  std::shared_ptr<fe::graph::Graph> graph;
  std::unordered_map<int64_t, void*> pointers;  // all there from the start
};

void check(fe::error_t error, const Key& k) {
  if (error.is_good()) return;
  refuse(fmt::format("{} of B={} T={} H={} G={} D={}: {}", k.backward ? "backward" : "forward", k.B,
                     k.T, k.H, k.G, k.D, error.get_message()));
}

// `gpu`: one that is not there, of `capability`; null: the one that is.
std::shared_ptr<fe::graph::Graph> describe(const Key& k,
                                           std::shared_ptr<fe::DeviceProperties> gpu = nullptr,
                                           int capability = 0) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph
      ->set_io_data_type(k.type == static_cast<int>(DType::bf16) ? fe::DataType_t::BFLOAT16
                                                                 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (gpu) graph->set_device_properties(gpu).set_sm_version(capability);
  using Stride = std::vector<int64_t>;
  const int64_t width = (k.H + 2 * k.G) * k.D, T = k.T, D = k.D;
  const auto packed = [&](int64_t heads) {  // of a row of queries, keys and values
    return std::pair(Stride{k.B, heads, T, D}, Stride{T * width, D, width, 1});
  };
  const std::pair rows(Stride{k.B, k.H, T, D}, Stride{T * k.H * D, D, k.H * D, 1});
  const std::pair statistics(Stride{k.B, k.H, T, 1}, Stride{k.H * T, T, 1, 1});
  const auto input = [&](const char* name, Uid uid, const auto& shape) {
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim(shape.first)
                             .set_stride(shape.second));
  };
  const auto lengths = [&](const char* name, Uid uid) {
    const auto tensor = input(name, uid, std::pair(Stride{k.B, 1, 1, 1}, Stride{1, 1, 1, 1}));
    tensor->set_data_type(fe::DataType_t::INT32);
    return tensor;
  };
  const auto output = [&](const auto& tensor, Uid uid, const auto& shape) {
    tensor->set_output(true).set_uid(uid).set_dim(shape.first).set_stride(shape.second);
  };
  const auto mask = [&](auto& attributes) {
    attributes.set_attn_scale(k.scale);
    if (k.causal)
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
    if (k.padding)
      attributes.set_padding_mask(true)
          .set_seq_len_q(lengths("query_lengths", kQueryLengths))
          .set_seq_len_kv(lengths("key_lengths", kKeyLengths));
  };
  const auto q = input("q", kQ, packed(k.H)), key = input("k", kK, packed(k.G)),
             v = input("v", kV, packed(k.G));
  if (!k.backward) {
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    mask(attributes);
    const auto [out, stats] = graph->sdpa(q, key, v, attributes);
    output(out, kO, rows);
    output(stats, kStats, statistics);
    stats->set_data_type(fe::DataType_t::FLOAT);
    return graph;
  }
  const auto out = input("o", kO, rows), dout = input("do", kDo, rows);
  const auto stats = input("stats", kStats, statistics);
  stats->set_data_type(fe::DataType_t::FLOAT);
  auto attributes = fe::graph::SDPA_backward_attributes()
                        .set_name("attention_backward")
                        .set_deterministic_algorithm(true);
  mask(attributes);
  const auto [dq, dk, dv] = graph->sdpa_backward(q, key, v, out, dout, stats, attributes);
  output(dq, kDq, packed(k.H));
  output(dk, kDk, packed(k.G));
  output(dv, kDv, packed(k.G));
  return graph;
}

// The tensors a graph is run with, in order.
std::vector<int64_t> tensors_of(const Key& key) {
  std::vector<int64_t> uids;
  for (int64_t uid = kQ; uid <= kDv; ++uid)
    if ((key.backward || uid < kDo) &&
        (key.padding || (uid != kQueryLengths && uid != kKeyLengths)))
      uids.push_back(uid);
  return uids;
}

// With a handle, or without one for the GPU that the graph was told of. `room`: bytes of workspace.
int64_t build(fe::graph::Graph& graph, cudnnHandle_t handle, const Key& key, int64_t room) {
  check(graph.validate(), key);
  check(graph.build_operation_graph(handle), key);
  check(graph.create_execution_plans({fe::HeurMode_t::A}), key);
  graph.deselect_workspace_greater_than(room);
  check(graph.check_support(), key);
  check(graph.build_plans(), key);
  // One that left out what it was told of would compute something else.
  if (graph.get_variant_pack_uids_sorted() != tensors_of(key))
    refuse("a graph over other tensors than it was described with");
  int64_t wants = 0;
  check(graph.get_workspace_size(wants), key);
  if (wants > room)
    refuse(fmt::format("a graph that wants {} bytes of workspace, {} are planned", wants, room));
  return wants;
}

// Built when a shape first comes, which takes the library a while, and kept: however many there
// are, for a calibration, an evaluation and a test have more than a run.
Entry& entry_of(const Library& l, const Key& key, int64_t room) {
  static std::deque<Entry> entries;
  for (Entry& e : entries)
    if (e.key == key) return e;
  Entry made{.key = key, .graph = describe(key), .pointers = {}};
  build(*made.graph, l.handle, key, room);
  for (const int64_t uid : tensors_of(key)) made.pointers[uid] = nullptr;
  return entries.emplace_back(std::move(made));
}

Key key_of(DType type, int64_t B, int64_t T, const AttentionSpec& s, bool backward) {
  return {B,
          T,
          s.H,
          s.G,
          s.D,
          s.scale,
          s.causal,
          s.key_lengths.defined(),
          static_cast<int32_t>(type),
          backward};
}

std::byte* part(const View& packed, int64_t elements) {
  return static_cast<std::byte*>(packed.data) + elements * size_of(packed.dtype);
}

// The graph of a call, its stream, and what it is handed beside the op's tensors.
Entry& ready(const simt::cuda::Queue& queue, const View& qkv, int64_t B, int64_t T,
             const AttentionSpec& spec, bool backward, const View& workspace) {
  Library& l = library();
  if (!l.no_handle.empty()) refuse("cuDNN is " + l.no_handle);
  const CudnnScratch parts = attention_cudnn_scratch(B, T, spec, backward);
  require(workspace.bytes() >= parts.total(), "the workspace that attention_cudnn_workspace plans");
  Entry& e = entry_of(l, key_of(qkv.dtype, B, T, spec, backward), parts.graph);
  if (fe::detail::set_stream(l.handle, queue.stream) != CUDNN_STATUS_SUCCESS)
    refuse("a handle that takes no stream");
  std::byte* at = static_cast<std::byte*>(workspace.data) + parts.graph;
  simt::cuda::Queue kernels = queue;
  if (spec.key_lengths.defined()) {
    static const Name kName("attention.query_lengths");
    const View lengths{at, {B}, DType::i32, qkv.place, kName};
    attention_query_lengths_on(kernels, lengths, T);
    e.pointers.at(kQueryLengths) = lengths.data;
    e.pointers.at(kKeyLengths) = spec.key_lengths.data;
  }
  return e;
}

void run(const simt::cuda::Queue& queue, Entry& e, const View& workspace) {
  auto error = e.graph->execute(library().handle, e.pointers, workspace.data);
  const cudaError_t late =
      error.is_good() && queue.sync_check ? cudaStreamSynchronize(queue.stream) : cudaSuccess;
  if (error.is_bad() || late != cudaSuccess)
    fail(ErrorCode::device, "cuDNN to run a graph it has built",
         error.is_bad() ? error.get_message() : cudaGetErrorString(late),
         "an earlier kernel may have failed: run with SNUG_SYNC_CHECK=1");
}

}  // namespace

void attention_cudnn_forward(const simt::cuda::Queue& queue, const View& out, const View& lse,
                             const View& qkv, int64_t B, int64_t T, const AttentionSpec& spec,
                             const View& workspace) {
  Entry& e = ready(queue, qkv, B, T, spec, false, workspace);
  auto& p = e.pointers;
  p.at(kQ) = qkv.data;
  p.at(kK) = part(qkv, spec.H * spec.D);
  p.at(kV) = part(qkv, (spec.H + spec.G) * spec.D);
  p.at(kO) = out.data;
  p.at(kStats) = lse.data;
  run(queue, e, workspace);
}

void attention_cudnn_backward(const simt::cuda::Queue& queue, const View& dqkv, const View& dout,
                              const View& qkv, const View& out, const View& lse, int64_t B,
                              int64_t T, const AttentionSpec& spec, const View& workspace) {
  Entry& e = ready(queue, qkv, B, T, spec, true, workspace);
  auto& p = e.pointers;
  for (const auto& [first, packed] : {std::pair(kQ, &qkv), std::pair(kDq, &dqkv)}) {
    p.at(first) = packed->data;
    p.at(first + 1) = part(*packed, spec.H * spec.D);
    p.at(first + 2) = part(*packed, (spec.H + spec.G) * spec.D);
  }
  p.at(kO) = out.data;
  p.at(kDo) = dout.data;
  p.at(kStats) = lse.data;
  run(queue, e, workspace);
  if (spec.key_lengths.defined()) {
    simt::cuda::Queue kernels = queue;
    attention_clear_padding_on(kernels, dqkv, B, T, spec);
  }
}

int64_t attention_cudnn_asks(const std::string& gpu_json, int capability, DType dtype, int64_t B,
                             int64_t T, const AttentionSpec& spec, bool backward) {
  if (!library().why.empty()) refuse("cuDNN is " + library().why);
  const Key key = key_of(dtype, B, T, spec, backward);
  const auto gpu = std::make_shared<fe::DeviceProperties>();
  check(gpu->deserialize({gpu_json.begin(), gpu_json.end()}), key);
  const auto graph = describe(key, gpu, capability);
  return build(*graph, nullptr, key, attention_cudnn_scratch(B, T, spec, backward).graph);
}

std::string cudnn_version() {
  if (!library().no_handle.empty()) return "";
  const auto v = static_cast<int>(fe::detail::get_backend_version());
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string describe_cudnn() {
  const Library& l = library();
  return l.no_handle.empty() ? fmt::format("cuDNN {} ({})", cudnn_version(), l.path) : l.no_handle;
}

#endif

}  // namespace snug
