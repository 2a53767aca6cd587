// A kernel that is slower than the machine's best one never runs silently: the code that chooses it
// gives the reason. Each is kept once for the process and passed to the handler.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace quern {

// "a slower kernel runs for WHAT: REASON", from any thread; once for each `what`, which names the
// op, its direction and what decides, for example the head size.
void note_slow_path(const std::string& what, const std::string& reason);

std::vector<std::string> slow_paths();  // the texts so far, in their order
void forget_slow_paths();               // for tests

// Gets every text from now on, in the thread that notes it; an empty one none. The program's main
// passes a warning of its log.
void handle_slow_paths(std::function<void(const std::string&)> handler);

}  // namespace quern
