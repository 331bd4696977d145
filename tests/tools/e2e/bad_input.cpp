#include "tests/tools/e2e/bad_input.h"

#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

std::string message(const char* kind, const std::string& expected, const std::string& found,
                    const std::string& advice) {
  return std::string(kind) + ": expected " + expected + "\n  found: " + found +
         "\n  try:   " + advice;
}

}  // namespace

std::string usage(const std::string& expected, const std::string& found,
                  const std::string& advice) {
  return message("usage", expected, found, advice);
}
std::string data(const std::string& expected, const std::string& found, const std::string& advice) {
  return message("data", expected, found, advice);
}
std::string unsupported(const std::string& expected, const std::string& found,
                        const std::string& advice) {
  return message("unsupported", expected, found, advice);
}
std::string device(const std::string& expected, const std::string& found,
                   const std::string& advice) {
  return message("device", expected, found, advice);
}
std::string too_small(const std::string& expected, const std::string& found,
                      const std::string& advice) {
  return message("out_of_memory", expected, found, advice);
}

Make file(const std::string& name, const std::string& content) {
  return [=](const Workspace& w) { spill(w.path(name), content); };
}
Make folder(const std::string& name) {
  return [=](const Workspace& w) { fs::create_directories(w.path(name)); };
}
Make copy(const std::string& from, const std::string& to) {
  return
      [=](const Workspace& w) { fs::copy(w.path(from), w.path(to), fs::copy_options::recursive); };
}
Make gone(const std::string& name) {
  return [=](const Workspace& w) { fs::remove_all(w.path(name)); };
}
Make bytes(const std::string& name, size_t at, const std::string& content) {
  return [=](const Workspace& w) {
    spill(w.path(name), slurp(w.path(name)).replace(at, content.size(), content));
  };
}
Make cut(const std::string& name, size_t count) {
  return [=](const Workspace& w) {
    const std::string all = slurp(w.path(name));
    spill(w.path(name), all.substr(0, all.size() - count));
  };
}
Make json(const std::string& name, const std::string& pointer, const Json& value) {
  return [=](const Workspace& w) {
    Json root = w.json(name);
    root[Json::json_pointer(pointer)] = value;
    spill(w.path(name), root.dump());
  };
}

Make sealed(const std::string& name) {
  return [=](const Workspace& w) { reseal(w.path(name)); };
}

std::string little(uint64_t value, int size) {
  std::string out;
  for (int i = 0; i < size; ++i) out += static_cast<char>(value >> (8 * i) & 255u);
  return out;
}
std::string safetensors(const std::string& header, size_t count) {
  return little(header.size(), 8) + header + std::string(count, '\0');
}
std::string counted(const std::string& text) {
  return little(text.size(), 8) + text;
}
std::string gguf(uint64_t tensors, uint64_t keys, const std::string& rest) {
  return "GGUF" + little(3, 4) + little(tensors, 8) + little(keys, 8) + rest;
}

}  // namespace snug::e2e
