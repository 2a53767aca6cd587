// A kernel that is slower than the machine's best one never runs silently: whoever chooses it says
// why. Each text is kept once for the process and passed to the handler, from any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace quern {

// "a slower kernel runs for WHAT: REASON". `what` names the op, its direction and what decides, for
// example the head size, but no lengths: a text for each would say the same again.
void note_slow_path(const std::string& what, const std::string& reason);

std::vector<std::string> slow_paths();  // all so far, in their order

// Gets every text from now on, and at once those so far; an empty one none. The program's main
// passes a warning of its log.
void handle_slow_paths(std::function<void(const std::string&)> handler);

}  // namespace quern
