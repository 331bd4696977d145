#include "engine/device/cuda_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace snug {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory(error)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());  // the order of a directory is nobody's choice
  return found;
}

void note(std::vector<std::string>& places, const fs::path& file) {
  std::error_code error;
  if (fs::exists(file, error)) places.push_back(file.string());
}

}  // namespace

std::vector<std::string> cuda_library_places(const std::string& name) {
  std::vector<std::string> places{name};
  const auto variable = [](const char* v) {
    const char* value = std::getenv(v);
    return fs::path(value == nullptr ? "" : value);
  };
  for (const fs::path& root :
       {variable("CUDA_HOME"), variable("CUDA_PATH"), fs::path("/usr/local/cuda")}) {
    if (root.empty()) continue;
    note(places, root / "lib64" / name);
    note(places, root / "lib" / name);
  }
  const fs::path home = variable("HOME");
  for (const fs::path& root :
       {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), home.empty() ? home : home / ".local",
        fs::path("/usr/local"), fs::path("/usr")}) {
    if (root.empty()) continue;
    for (const fs::path& python : folders_in(root / "lib")) {
      if (python.filename().string().rfind("python3", 0) != 0) continue;
      for (const char* packages : {"site-packages", "dist-packages"})
        for (const fs::path& part : folders_in(python / packages / "nvidia"))
          note(places, part / "lib" / name);
    }
  }
  return places;
}

void* open_cuda_library(const char* variable, const std::vector<std::string>& names,
                        std::string& path, std::string& why) {
  why.clear();
  std::vector<std::string> places;
  if (const char* only = std::getenv(variable)) {
    places = {only};
  } else {
    for (const std::string& name : names)
      for (std::string& place : cuda_library_places(name)) places.push_back(std::move(place));
  }
  for (const std::string& place : places) {
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      path = place;
      return library;
    }
    if (why.empty()) why = dlerror();
  }
  return nullptr;
}

}  // namespace snug
