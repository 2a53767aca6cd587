// Text that several commands print in the same form.
#pragma once

#include <cstdint>
#include <string>

namespace quern {

// "1 document", "2 documents".
std::string counted(int64_t count, const std::string& noun);

// 59s, 12m05s, 3h07m.
std::string duration_text(double seconds);

}  // namespace quern
