#!/bin/sh
# Fetch Spark's Kafka source, and what Spark lacks of all that it needs, into Spark's jars: connector.sh SPARK_HOME LIST.
# LIST has the hash of each in the form of sha256sum. Spark brings Ivy, which fetches.
set -eu
spark=$1 list=$2
version=$(sed -n 's/.*spark-sql-kafka-0-10_2.13-\(.*\)\.jar$/\1/p' "$list")
found=$(mktemp -d)
cat >"$found/ivy.xml" <<IVY
<ivy-module version="2.0">
  <info organisation="opentab" module="image"/>
  <dependencies>
    <dependency org="org.apache.spark" name="spark-sql-kafka-0-10_2.13" rev="$version" conf="default->default"/>
  </dependencies>
</ivy-module>
IVY
java -jar "$spark"/jars/ivy-*.jar -ivy "$found/ivy.xml" -cache "$found/cache" \
    -retrieve "$found/[artifact]-[revision].[ext]" -types jar bundle >"$found/said" || { cat "$found/said" >&2; exit 1; }
(cd "$found" && sha256sum --check --strict --quiet) <"$list"
# What Spark has already, it has in the version that it was built with.
for jar in $(sed 's/.* //' "$list"); do
    ls "$spark"/jars/"${jar%-[0-9]*}"-[0-9]*.jar >/dev/null 2>&1 || cp "$found/$jar" "$spark/jars/"
done
rm -rf "$found"
