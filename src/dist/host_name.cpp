#include "dist/host_name.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "base/error.h"
#include "base/first_line.h"

namespace quern {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "an unknown host";
  return name.data();
}

std::string machine_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  return in >> id ? id : host_name();
}

std::string rank_text(int rank, int size) {
  return cat("rank ", rank, " of ", size, " on ", host_name());
}

std::string failure_text(const std::string& rank, const std::string& reason) {
  return cat(rank, " has failed: ", first_line(reason));
}

}  // namespace quern
