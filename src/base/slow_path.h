// Reports of slower kernels. Code that chooses a kernel slower than the machine's best one reports
// the reason here. Each report is stored once per process and passed to the handler.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace quern {

// "a slower kernel runs for WHAT: REASON", from any thread; once for each `what`, which names the
// op, its direction and the deciding property, for example the head size.
void note_slow_path(const std::string& what, const std::string& reason);

std::vector<std::string> slow_paths();  // the texts so far, in their order
void forget_slow_paths();               // for tests

// Sets the handler of later texts, called in the noting thread; an empty one ignores them. The
// program's main passes a handler that logs a warning.
void handle_slow_paths(std::function<void(const std::string&)> handler);

}  // namespace quern
