{{/*
Names are fixed: there is one Weft in a cluster, and certificates and the operator's code name the
service accounts, the Service and the Lease.
*/}}

{{- define "weft.labels" -}}
app.kubernetes.io/part-of: weft
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "weft.operator.selector" -}}
app.kubernetes.io/name: weft-operator
{{- end }}

{{- define "weft.operator.extraEnv" -}}
{{- $given := list "POD_NAME" "POD_NAMESPACE" "POD_IP" }}
{{- include "weft.extraEnv" (dict "who" "operator" "env" .Values.operator.extraEnv "given" $given) }}
{{- end }}

{{- define "weft.agent.selector" -}}
app.kubernetes.io/name: weft-agent
{{- end }}

{{/*
The image of a program: by its digest if one is given, else by the tag.
*/}}
{{- define "weft.image" -}}
{{- $image := .root.Values.image }}
{{- $digest := index $image.digests .who }}
{{- $version := printf ":%s" ($image.tag | default .root.Chart.AppVersion) }}
{{- if $digest }}{{ $version = printf "@%s" $digest }}{{ end }}
{{- printf "%s/%s%s" $image.registry .who $version | quote }}
{{- end }}

{{/*
A program listens at each of its ports.
*/}}
{{- define "weft.ports" -}}
{{- range $name, $port := .ports }}
{{- range $other, $same := $.ports }}
{{- if and (lt $name $other) (eq (int $port) (int $same)) }}
{{- fail (printf "%s.ports: %s and %s are both %d; choose different ports" $.who $name $other (int $port)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The user's own flags. A program takes a flag once, so one that it is given anyway is refused here.
*/}}
{{- define "weft.extraArgs" -}}
{{- range .args }}
{{- $flag := first (splitList "=" .) }}
{{- if has $flag $.given }}
{{- fail (printf "%s.extraArgs: %s is given already; use the value of the chart that sets it" $.who $flag) }}
{{- end }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{/*
The user's own variables. A list with one name twice cannot be applied, so a name of the chart's is refused here.
*/}}
{{- define "weft.extraEnv" -}}
{{- range .env }}
{{- if has .name $.given }}
{{- fail (printf "%s.extraEnv: %s is given already; choose another variable" $.who .name) }}
{{- end }}
- {{ toJson . }}
{{- end }}
{{- end }}

{{/*
A map as CEL writes it. Its values are of several types, which CEL takes for a mistake unless they are dyn.
*/}}
{{- define "weft.cel.map" -}}
{{- $entries := list }}
{{- range $key, $value := . }}
{{- $entries = append $entries (printf "%q: dyn(%s)" $key (toJson $value)) }}
{{- end }}
{{- printf "{%s}" (join ", " $entries) }}
{{- end }}
