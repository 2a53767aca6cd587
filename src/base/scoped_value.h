// Sets a variable for a scope.
#pragma once

#include <type_traits>
#include <utility>

namespace quern {

// Restores the previous value at the end of its lifetime. Scopes of one variable nest.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& variable, std::type_identity_t<T> value)
      : variable_(variable), previous_(std::exchange(variable, value)) {}
  ~ScopedValue() { variable_ = previous_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

  T previous() const { return previous_; }

 private:
  T& variable_;
  T previous_;
};

}  // namespace quern
