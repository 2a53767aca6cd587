#include "base/slow_path.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace quern {

namespace {

struct SlowPaths {
  std::mutex mutex;
  std::vector<std::string> texts;
  std::function<void(const std::string&)> handler;
};

SlowPaths& known() {
  static SlowPaths paths;
  return paths;
}

}  // namespace

void note_slow_path(const std::string& what, const std::string& reason) {
  std::string text = cat("a slower kernel runs for ", what, ": ", reason);
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  if (std::find(paths.texts.begin(), paths.texts.end(), text) != paths.texts.end()) return;
  paths.texts.push_back(std::move(text));
  if (paths.handler) paths.handler(paths.texts.back());
}

std::vector<std::string> slow_paths() {
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  return paths.texts;
}

void handle_slow_paths(std::function<void(const std::string&)> handler) {
  SlowPaths& paths = known();
  const std::lock_guard lock(paths.mutex);
  paths.handler = std::move(handler);
  if (!paths.handler) return;
  for (const std::string& text : paths.texts) paths.handler(text);
}

}  // namespace quern
