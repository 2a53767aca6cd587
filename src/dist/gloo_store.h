// The store of the ranks, as Gloo sees it. Only for sources that are compiled with Gloo.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <vector>

#include "dist/store.h"

namespace quern {

class GlooStore : public gloo::rendezvous::Store {
 public:
  explicit GlooStore(quern::Store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(kPrefix + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(kPrefix + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  inline static const std::string kPrefix = "gloo/";
  quern::Store& store_;
};

}  // namespace quern
