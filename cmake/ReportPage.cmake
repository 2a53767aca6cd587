# The page of `quern report` inside quern_report, and where chart.js lies, which it reads when it runs.

quern_embed(quern_report report_page src/report/page/page.html src/report/page/page.css
            src/report/page/charts.js src/report/page/page.js)

find_file(QUERN_CHART_JS chart.min.js PATHS /usr/share/javascript/chart.js NO_DEFAULT_PATH)
mark_as_advanced(QUERN_CHART_JS)
set(quern_chart_js ${QUERN_CHART_JS})
if(NOT quern_chart_js)
  set(quern_chart_js /usr/share/javascript/chart.js/chart.min.js) # where Debian's package puts it
endif()
set_source_files_properties(src/report/report.cpp PROPERTIES COMPILE_DEFINITIONS
                            QUERN_CHART_JS="${quern_chart_js}")
