#include "engine/core/name.h"

#include <mutex>
#include <unordered_set>

namespace snug {

Name::Name(std::string_view text) {
  if (text.empty()) return;  // equal to a default Name
  // Node-based set: a string's address never changes. Never destroyed, so names outlive everything.
  static std::mutex mutex;
  static auto* pool = new std::unordered_set<std::string>();
  const std::lock_guard lock(mutex);
  text_ = &*pool->emplace(text).first;
}

Name join(Name parent, std::string_view child) {
  if (parent.empty()) return Name(child);
  if (child.empty()) return parent;
  return Name(parent.str() + "." + std::string(child));
}

}  // namespace snug
