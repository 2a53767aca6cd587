#include "base/slow_path.h"

#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"

namespace quern {

namespace {

struct SlowPaths {
  std::mutex mutex;
  std::set<std::string> noted;  // what
  std::vector<std::string> texts;
  std::function<void(const std::string&)> handler;
};

SlowPaths& known() {
  static SlowPaths paths;
  return paths;
}

}  // namespace

void note_slow_path(const std::string& what, const std::string& reason) {
  SlowPaths& paths = known();
  std::unique_lock lock(paths.mutex);
  if (!paths.noted.insert(what).second) return;
  const std::string text =
      paths.texts.emplace_back(cat("a slower kernel runs for ", what, ": ", reason));
  const auto handler = paths.handler;
  lock.unlock();
  if (handler) handler(text);
}

std::vector<std::string> slow_paths() {
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  return paths.texts;
}

void forget_slow_paths() {
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  paths.noted.clear();
  paths.texts.clear();
}

void handle_slow_paths(std::function<void(const std::string&)> handler) {
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  paths.handler = std::move(handler);
}

}  // namespace quern
