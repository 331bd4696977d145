#include "tools/calibrate/calibration.h"

#include <cpuid.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "engine/core/error.h"
#include "engine/device/busy.h"
#include "engine/io/files.h"
#include "engine/io/fingerprint.h"
#include "engine/io/json.h"
#include "engine/memory/context.h"
#include "tools/calibrate/measure_ops.h"
#include "tools/costs/kernel_choices.h"
#include "tools/planner/plan.h"

namespace snug {
namespace {

constexpr int64_t kFormat = 3;  // 2: with the seconds of ops; 3: by FLOPs and bytes
constexpr int64_t kMostFileBytes = 1 << 20;
constexpr double kMargin = 1.03;

// The brand (leaves 0x80000002 to 4) and, since a virtual machine's brand may say little, family,
// model and stepping (leaf 1).
std::string cpu_model() {
  unsigned r[12] = {};
  for (unsigned i = 0; i < 3; ++i)
    __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
  char brand[49] = {};
  std::memcpy(brand, r, 48);
  std::string name(brand);
  for (char& c : name)
    if (c < ' ' || c > '~') c = ' ';
  while (!name.empty() && name.back() == ' ') name.pop_back();
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  return fmt::format("{} ({:08x})", name, a);
}

// The linker's build ID of the program; empty if it has none.
std::string build_id() {
  std::string id;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_NOTE) continue;
          const auto* p = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
          const char* const end = p + header.p_memsz;
          while (end - p >= static_cast<int64_t>(sizeof(ElfW(Nhdr)))) {
            ElfW(Nhdr) note;
            std::memcpy(&note, p, sizeof note);
            const char* name = p + sizeof note;
            const char* text = name + (note.n_namesz + 3) / 4 * 4;
            if (text + note.n_descsz > end) break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
                std::memcmp(name, "GNU", 4) == 0)
              for (unsigned k = 0; k < note.n_descsz; ++k)
                *static_cast<std::string*>(out) +=
                    fmt::format("{:02x}", static_cast<unsigned char>(text[k]));
            p = text + (note.n_descsz + 3) / 4 * 4;
          }
        }
        return 1;  // the first object is the program
      },
      &id);
  return id;
}

// Processor time of the calling thread.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Operands {
  explicit Operands(int64_t elements) : bytes(static_cast<size_t>(elements) * 4 + 64) {}
  std::vector<char> bytes;
  void* fill(DType t, int64_t n) {  // values of ordinary size, none of them subnormal
    for (int64_t i = 0; i < n; ++i) {
      const float v = 0.25f + static_cast<float>(i % 17) / 32.0f;
      if (t == DType::bf16)
        reinterpret_cast<bf16*>(bytes.data())[i] = from_f32<bf16>(v);
      else
        reinterpret_cast<float*>(bytes.data())[i] = v;
    }
    return bytes.data();
  }
};

// Products that stand for a class. Weights' gradients (tn) sum into fp32.
MeasuredProduct standing_for(const ProductClass& c, DType t) {
  constexpr int64_t kN[] = {384, 2048, 8192}, kK[] = {256, 1024};
  MeasuredProduct m;
  m.choice.shapes = c;
  m.choice.a = m.choice.b = t;
  m.M = c.columns == 2 ? 128 : 384;
  m.N = kN[c.columns];
  m.K = kK[c.depth];
  return m;
}

MatmulProblem problem_of(const MeasuredProduct& m, const void* a, const void* b, void* c) {
  const ProductClass& s = m.choice.shapes;
  MatmulProblem p;
  p.M = m.M;
  p.N = m.N;
  p.K = m.K;
  p.a = {a, m.choice.a, s.a_transposed ? 1 : m.K, s.a_transposed ? m.M : 1};
  p.b = {b, m.choice.b, s.b_transposed ? 1 : m.N, s.b_transposed ? m.K : 1};
  p.c = c;
  p.c_dtype = s.a_transposed ? DType::f32 : m.choice.a;
  p.ldc = m.N;
  p.accumulate = s.a_transposed;
  return p;
}

// What is worth measuring: not what a wider kernel of the same sums beats, nor what only tests use.
std::vector<MatmulKernel> candidates(const MatmulProblem& p) {
  std::vector<MatmulKernel> list;
  for (const MatmulKernel k : {MatmulKernel::avx2, MatmulKernel::avx512, MatmulKernel::avx512_bf16,
                               MatmulKernel::amx_bf16})
    if (matmul_supports(p, k) &&
        !(k == MatmulKernel::avx2 && matmul_available(MatmulKernel::avx512)))
      list.push_back(k);
  if (list.empty()) list.push_back(MatmulKernel::reference);
  return list;
}

nlohmann::json key_json(const MachineKey& k) {
  return {{"cpu", k.cpu},
          {"instruction_set", k.instruction_set},
          {"threads", k.threads},
          {"version", k.version},
          {"build", k.build}};
}

double positive(const nlohmann::json& j, const char* key, const std::string& where) {
  const double value = get_number(j, key, where);
  if (!(value >= 0 && value < 1e18))
    fail(ErrorCode::data, fmt::format("a rate of 0 or more for {} in {}", key, where),
         fmt::format("{}", value), "measure again with snug calibrate --force");
  return value;
}

Calibration parse_calibration(const nlohmann::json& j, const std::string& where) {
  require_object(j, where);
  if (get_string(j, "format", where, "") != "snug calibration" ||
      get_int(j, "format_version", where, 0) != kFormat)
    fail(ErrorCode::data, fmt::format("a calibration of version {} in {}", kFormat, where),
         "another file", "measure again with snug calibrate --force");
  Calibration c;
  const auto object = [&](const char* name) {
    const nlohmann::json part = j.contains(name) ? j[name] : nlohmann::json();
    require_object(part, where + " / " + name);
    return part;
  };
  const nlohmann::json key = object("key"), roofs = object("roofs");
  const std::string in_key = where + " / key", in_roofs = where + " / roofs";
  c.key.cpu = get_string(key, "cpu", in_key);
  c.key.instruction_set = get_string(key, "instruction_set", in_key);
  c.key.version = get_string(key, "version", in_key);
  c.key.build = get_string(key, "build", in_key);
  c.key.threads = static_cast<int>(get_int_in(key, "threads", in_key, 1, 1024));
  c.roofs.threads = c.key.threads;
  c.roofs.fp32_flops = positive(roofs, "fp32_flops", in_roofs);
  c.roofs.bf16_flops = positive(roofs, "bf16_flops", in_roofs);
  c.roofs.read_bytes = positive(roofs, "read_bytes", in_roofs);
  c.roofs.copy_bytes = positive(roofs, "copy_bytes", in_roofs);
  c.roofs.stream_bytes = positive(roofs, "stream_bytes", in_roofs);
  c.seconds = positive(j, "seconds", where);
  c.waited = positive(j, "waited", where);
  const nlohmann::json list = j.contains("products") ? j["products"] : nlohmann::json();
  const std::vector<KernelChoice> choices = parse_choices(list, where + " / products");
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string at = fmt::format("{} / products / {}", where, i);
    if (choices[i].a == DType::f16 || choices[i].b == DType::f16)
      fail(ErrorCode::data, fmt::format("a dtype that is measured, f32 or bf16, in {}", at),
           "f16, which is multiplied as f32", "measure again with snug calibrate --force");
    if (choices[i].kernel == MatmulKernel::cublaslt)
      fail(ErrorCode::data, fmt::format("a kernel of a CPU in {}", at), "\"cublaslt\", a GPU's",
           "measure again with snug calibrate --force");
    MeasuredProduct m = standing_for(choices[i].shapes, choices[i].a);
    m.choice = choices[i];
    const nlohmann::json rates = list[i].contains("rates") ? list[i]["rates"] : nlohmann::json();
    require_object(rates, at);
    for (const auto& item : rates.items()) {
      const auto kernel = parse_matmul_kernel(item.key());
      if (kernel) m.rates.push_back({*kernel, positive(rates, item.key().c_str(), at)});
    }
    c.products.push_back(std::move(m));
  }
  const nlohmann::json ops = object("ops");
  const std::string in_ops = where + " / ops";
  require_object(ops, in_ops);
  for (const char* dtype : {"f32", "bf16"})
    (dtype[0] == 'f' ? c.fp32_ops : c.bf16_ops) = OpRates::parse(
        ops.contains(dtype) ? ops[dtype] : nlohmann::json(), fmt::format("{} / {}", in_ops, dtype));
  return c;
}

}  // namespace

MachineKey machine_key(int threads) {
  return {cpu_model(), plan_instruction_set(), SNUG_VERSION, build_id(), threads};
}

KernelTable Calibration::table() const {
  KernelTable t;
  for (const MeasuredProduct& m : products) t.set(m.choice);
  return t;
}

MatmulKernel fastest_kernel(const std::vector<KernelRate>& rates, MatmulKernel usual) {
  MatmulKernel best = usual;
  double rate = 0;
  for (const KernelRate& r : rates)
    if (r.kernel == usual) rate = r.flops * kMargin;
  for (const KernelRate& r : rates)
    if (r.kernel != usual && r.flops >= rate) {
      best = r.kernel;
      rate = r.flops;
    }
  return best;
}

Calibration calibrate(int threads, double seconds) {
  const double started = monotonic_seconds(), waited = waited_seconds();
  Calibration c;
  c.key = machine_key(threads);
  c.roofs = measure_roofs(threads);
  for (const DType t : {DType::f32, DType::bf16})
    for (const ProductClass& s : product_classes())
      // The products of training: x W^T, dy W and dy^T x.
      if (!(s.a_transposed && s.b_transposed)) c.products.push_back(standing_for(s, t));

  int64_t a_most = 0, b_most = 0, c_most = 0, scratch_most = 0;
  for (MeasuredProduct& m : c.products) {
    const MatmulProblem p = problem_of(m, nullptr, nullptr, nullptr);
    a_most = std::max(a_most, m.M * m.K);
    b_most = std::max(b_most, m.K * m.N);
    c_most = std::max(c_most, m.M * m.N);
    for (const MatmulKernel k : candidates(p)) {
      m.rates.push_back({k, 0});
      scratch_most = std::max(
          scratch_most, matmul_scratch_bytes(m.M, m.N, m.K, p.a.dtype, p.b.dtype, p.c_dtype, k, 1));
    }
  }
  Operands a(a_most), b(b_most), out(c_most), scratch(scratch_most / 4 + 1);
  DType filled = DType::u8;
  // One thread's processor time, in turns: what else the machine does hardly shows in it, and the
  // order of the kernels is the same for any number of threads.
  const double end = started + seconds / 5;
  for (int round = 0; round < 2 || monotonic_seconds() < end; ++round)
    for (MeasuredProduct& m : c.products) {
      if (filled != m.choice.a) {
        a.fill(m.choice.a, a_most);
        b.fill(m.choice.b, b_most);
        filled = m.choice.a;
      }
      const MatmulProblem p = problem_of(m, a.bytes.data(), b.bytes.data(), out.bytes.data());
      const double work =
          2.0 * static_cast<double>(m.M) * static_cast<double>(m.N) * static_cast<double>(m.K);
      for (KernelRate& r : m.rates) {
        const double before = thread_seconds();
        matmul_cpu(p, r.kernel, scratch.bytes.data(), 1);
        r.flops = std::max(r.flops, work / std::max(1e-9, thread_seconds() - before));
      }
    }
  for (MeasuredProduct& m : c.products)
    m.choice.kernel = fastest_kernel(m.rates, matmul_best(m.choice.a, m.choice.b));
  // The ops of a step, computed as they then will be.
  const KernelTable kernels = c.table();
  Settings settings;
  settings.threads = threads;
  settings.kernels = &kernels;
  c.fp32_ops = measure_ops(DType::f32, settings, 0.4 * seconds);
  c.bf16_ops = measure_ops(DType::bf16, settings, 0.4 * seconds);
  c.roofs = larger(c.roofs, measure_roofs(threads, 0.2));
  c.seconds = monotonic_seconds() - started;
  c.waited = std::max(0.0, waited_seconds() - waited) / (c.seconds * threads);
  return c;
}

std::string calibration_file(const std::string& name) {
  const auto absolute = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && value[0] == '/' ? std::string(value) : std::string();
  };
  std::string folder = absolute("XDG_CACHE_HOME");
  if (folder.empty()) {
    folder = absolute("HOME");
    if (folder.empty()) return "";
    folder += "/.cache";
  }
  return fmt::format("{}/snug/{}.json", folder, name);
}

// Not by build: a new one replaces what an old one left.
std::string calibration_path(const MachineKey& key) {
  const std::string text = fmt::format("{}|{}|{}", key.cpu, key.instruction_set, key.threads);
  return calibration_file("calibration-" + fingerprint_text(fingerprint(text)));
}

nlohmann::json calibration_json(const Calibration& c) {
  std::vector<KernelChoice> choices;
  for (const MeasuredProduct& m : c.products) choices.push_back(m.choice);
  nlohmann::json list = choices_json(choices);
  for (size_t i = 0; i < c.products.size(); ++i) {
    const MeasuredProduct& m = c.products[i];
    list[i]["shape"] = {m.M, m.N, m.K};
    for (const KernelRate& r : m.rates) list[i]["rates"][to_string(r.kernel)] = r.flops;
  }
  return {{"format", "snug calibration"},
          {"format_version", kFormat},
          {"key", key_json(c.key)},
          {"roofs",
           {{"fp32_flops", c.roofs.fp32_flops},
            {"bf16_flops", c.roofs.bf16_flops},
            {"read_bytes", c.roofs.read_bytes},
            {"copy_bytes", c.roofs.copy_bytes},
            {"stream_bytes", c.roofs.stream_bytes}}},
          {"products", list},
          {"ops", {{"f32", c.fp32_ops.json()}, {"bf16", c.bf16_ops.json()}}},
          {"seconds", c.seconds},
          {"waited", c.waited}};
}

void write_calibration(const std::string& path, const Calibration& c) {
  write_calibration_file(path, calibration_json(c));
}

void write_calibration_file(const std::string& path, const nlohmann::json& j) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to create {}", folder.string()), error.message(),
         "set XDG_CACHE_HOME to a folder that can be written");
  write_json_file(path, j);
}

std::optional<Calibration> read_calibration(const std::string& path, const MachineKey& key,
                                            std::string* ignored) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    Calibration c = parse_calibration(parse_json_file(path, kMostFileBytes), path);
    std::string other;
    if (c.key.cpu != key.cpu)
      other = fmt::format("CPU {}", c.key.cpu);
    else if (c.key.instruction_set != key.instruction_set)
      other = c.key.instruction_set;
    else if (c.key.threads != key.threads)
      other = fmt::format("{} threads", c.key.threads);
    else if (c.key.version != key.version || c.key.build != key.build)
      other = "another build of Snug";
    for (const MeasuredProduct& m : c.products)
      if (other.empty() && !matmul_available(m.choice.kernel))
        other = fmt::format("the kernel {}, which this CPU lacks", to_string(m.choice.kernel));
    if (other.empty()) return c;
    *ignored = fmt::format("{} is for {}; snug calibrate measures again", path, other);
  } catch (const std::exception& e) {
    std::string what = e.what();
    std::replace(what.begin(), what.end(), '\n', ' ');
    *ignored = fmt::format("{} cannot be used: {}", path, what);
  }
  return std::nullopt;
}

KernelTable calibrated_kernels(int threads, std::string* ignored) {
  const MachineKey key = machine_key(threads);
  const auto c = read_calibration(calibration_path(key), key, ignored);
  return c ? c->table() : KernelTable();
}

}  // namespace snug
